// Passes of a program over stages of objects, and what the processes of a job agree on between
// them. The step around them is Python's: see millrace/torch/pipeline.py.
#include <algorithm>
#include <chrono>
#include <optional>
#include <pybind11/stl.h>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/step_watch.hpp"
#include "millrace/training/trainer.hpp"
#include "module/arrays.hpp"
#include "module/bindings.hpp"
#include "module/launched.hpp"
#include "module/let_go.hpp"
#include "module/object_stage.hpp"
#include "module/tensors.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

constexpr std::uint64_t kEvaluation = std::uint64_t{1} << 63U;

/// Stages know their inputs and targets by themselves.
class NoData final : public StepData {
 public:
  TensorList inputs(const Unit&) override { return {}; }
  TensorList targets(const Unit&) override { return {}; }
  [[nodiscard]] std::int64_t first_sample(const Unit&) const override { return 0; }
};

/// The rank's part of a training program, and of the forward-only one.
class Passes {
 public:
  Passes(const Program& program,
         const py::function& stage_of,
         const std::string& executor,
         bool recompute,
         const py::object& pack,
         const py::object& unpack)
      : self_(launched()), shape_(program.shape) {
    const int world = self_->world();
    require(world % shape_.ranks == 0 || world == 1, [&] {
      return "the program has " + std::to_string(shape_.ranks) + " ranks, but " +
             std::to_string(world) +
             " processes were launched; launch -n must be a multiple of the ranks";
    });
    if (world > 1) {
      endpoint_ = object_endpoint(self_->joined().endpoint(), pack, unpack);
      position_ = GridPosition(*endpoint_, Grid(world / shape_.ranks, shape_.ranks));
    }
    for (int replica = 0; replica < shape_.replicas(); ++replica)
      for (int stage = 0; stage < shape_.stages(); ++stage) {
        if (!position_.hosts(shape_.rank(Replica{replica}, Stage{stage}))) continue;
        bodies_.push_back(std::make_unique<ObjectStage>(stage_of(replica, stage)));
        hosted_.push_back({Replica{replica}, Stage{stage}, bodies_.back().get()});
      }
    const py::gil_scoped_release unlocked;
    training_ = executor_of(recompute ? insert_recompute(program) : program, executor);
    evaluation_ = executor_of(forward_program(shape_), executor);
  }

  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  /// Threads of the executors may still want the lock.
  ~Passes() {
    unlocked([&] {
      training_.reset();
      evaluation_.reset();
    });
  }

  void run(std::uint64_t step, bool training, int pass, int passes, double seconds) {
    StepSettings settings;
    settings.step = training ? step : kEvaluation | step;
    settings.training = training;
    settings.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
    settings.pass = pass;
    settings.passes = passes;
    NoData data;
    unlocked([&] {
      std::optional<Timed> timed;
      if (training) timed.emplace(times_.pass);
      (training ? training_ : evaluation_)->run(data, settings);
      if (training && watch_) watch_->add_pass();
    });
  }

  /// From now on there are records of steps. A collective of the group, which must outlive this.
  void watch(ProcessGroup& group) {
    unlocked([&] { watch_.emplace(*training_, group); });
    restart();
  }

  /// The next record's time begins; what ran since the last one is forgotten.
  void restart() {
    times_ = {.optimizer = std::vector<double>(static_cast<std::size_t>(shape_.ranks))};
    if (!watch_) return;
    watch_->begin_step();
    watch_->restart();
  }

  /// A collective; the first process gets the record. Until a step's end its ranks are in the norm
  /// or the update when they are in no pass. `validation` is in no step.
  std::optional<StepRecord> record(
      std::int64_t step, const StepReport& report, double data, double save, double validation) {
    require(watch_.has_value(), "record() needs watch()");
    times_.update = std::max(0.0, report.seconds - times_.pass);
    times_.data = data;
    times_.save = save;
    times_.validation = validation;
    times_.optimizer.assign(times_.optimizer.size(), times_.update);
    return unlocked([&] { return watch_->record(report, step, times_); });
  }

  [[nodiscard]] std::vector<std::string> warnings() const {
    return plan_warnings(training_->program(), hosted_);
  }
  [[nodiscard]] py::list timeline() const { return to_arrays(training_->timeline()); }
  [[nodiscard]] std::string svg(const std::string& title) const {
    const Program& program = training_->program();
    return draw_svg(program, training_->timeline(), Cost::unit(program.shape), title);
  }
  [[nodiscard]] SharedProgram program() const {
    return std::make_shared<Program>(training_->program());
  }

 private:
  [[nodiscard]] std::unique_ptr<Executor> executor_of(const Program& program,
                                                      const std::string& name) const {
    if (endpoint_ == nullptr) return make_executor(executor_kind(name), program, hosted_);
    return make_rank_executor(program, hosted_, position_);
  }

  std::shared_ptr<Launched> self_;
  Shape shape_;
  std::unique_ptr<Endpoint> endpoint_;
  GridPosition position_;
  Bodies bodies_;
  std::vector<HostedStage> hosted_;
  std::unique_ptr<Executor> training_, evaluation_;
  StepTimes times_;
  std::optional<StepWatch> watch_;
};

/// Of millrace.results.StepReport, and what it does not have.
StepReport step_report(const py::object& given,
                       std::int64_t epoch,
                       std::int64_t batch,
                       double scale) {
  StepReport report;
  report.epoch = epoch;
  report.batch = batch;
  report.loss_scale = scale;
  const auto take = [&](auto& value, const char* name) {
    value = given.attr(name).cast<std::decay_t<decltype(value)>>();
  };
  take(report.global_step, "global_step");
  take(report.samples, "samples");
  take(report.loss.sum, "loss_sum");
  take(report.loss.weight, "loss_weight");
  take(report.gradient_norm, "gradient_norm");
  take(report.clip_factor, "clip_factor");
  take(report.learning_rate, "learning_rate");
  take(report.skipped, "skipped");
  take(report.seconds, "seconds");
  return report;
}

/// millrace.Group: collectives of a job's processes, or of some of them.
class Group {
 public:
  Group(std::shared_ptr<Launched> self, const std::vector<int>& ranks, int number)
      : self_(std::move(self)) {
    if (self_->world() == 1) return;
    std::vector<Rank> processes;
    for (const int rank : ranks) processes.push_back(Rank{rank});
    Endpoint& endpoint = self_->joined().endpoint();
    group_ = ranks.empty() ? ProcessGroup(endpoint) : ProcessGroup(endpoint, processes, number);
  }

  [[nodiscard]] ProcessGroup& processes() { return group_; }
  [[nodiscard]] int size() const { return group_.size(); }
  [[nodiscard]] int rank() const { return group_.rank(); }

  void begin_step(std::uint64_t step, bool training) {
    group_.begin_step(training ? step : kEvaluation | step);
  }

  /// What every process gave, in order.
  py::list all_gather(const py::object& arrays, Label label) {
    TensorList mine = tensors_of(arrays, "all_gather");
    std::vector<TensorList> all =
        unlocked([&] { return group_.all_gather(std::move(mine), label); });
    py::list lists;
    for (TensorList& of_process : all) {
      py::list list;
      for (std::size_t i = 0; i < of_process.size(); ++i)
        list.append(to_array(std::move(of_process[i])));
      lists.append(list);
    }
    return lists;
  }

  std::vector<std::string> gather(const std::string& mine, Label label) {
    return unlocked([&] { return group_.gather(mine, label); });
  }

  void cancel(const std::string& reason) {
    unlocked([&] { group_.cancel(reason); });
  }

  /// What this process does outside the program, for the report of a hang.
  void working(const std::string& what, std::uint64_t step) {
    if (self_->world() > 1)
      self_->joined().endpoint().working({.what = what, .of_unit = false, .step = step});
  }

 private:
  std::shared_ptr<Launched> self_;
  ProcessGroup group_;
};

void bind_group(py::module_& module) {
  py::enum_<Label>(module, "Label", "What a collective agrees on, for the report of a hang.")
      .value("Settings", Label::Settings)
      .value("Data", Label::Data)
      .value("Loss", Label::Loss)
      .value("TiedWeights", Label::TiedWeights)
      .value("GradientNorm", Label::GradientNorm)
      .value("WeightsHash", Label::WeightsHash)
      .value("Checkpoint", Label::Checkpoint)
      .value("Values", Label::Values);
  py::class_<Group>(module, "Group", "Collectives of the processes of a job, or of some of them.")
      .def(py::init<std::shared_ptr<Launched>, const std::vector<int>&, int>(),
           "place"_a,
           "ranks"_a = std::vector<int>(),
           "number"_a = 0)
      .def_property_readonly("size", &Group::size)
      .def_property_readonly("rank", &Group::rank)
      .def("begin_step", &Group::begin_step, "step"_a, "training"_a = true)
      .def("all_gather", &Group::all_gather, "arrays"_a, "label"_a)
      .def("gather", &Group::gather, "text"_a, "label"_a)
      .def("cancel", &Group::cancel, "reason"_a)
      .def("working", &Group::working, "what"_a, "step"_a);
}

}  // namespace

void bind_step_passes(py::module_& module) {
  bind_group(module);
  py::class_<Passes>(module,
                     "Passes",
                     "Runs the stages of this process by a program; all of them where it is alone.")
      .def(py::init<const Program&,
                    const py::function&,
                    const std::string&,
                    bool,
                    const py::object&,
                    const py::object&>(),
           "program"_a,
           "stage_of"_a,
           "executor"_a,
           "recompute"_a,
           "pack"_a,
           "unpack"_a)
      .def("run",
           &Passes::run,
           "step"_a,
           "training"_a = true,
           "number"_a = 0,
           "count"_a = 1,
           "deadline"_a = 600.0,
           "One pass: every action of this process, once.")
      .def(
          "watch",
          [](Passes& self, Group& group) { self.watch(group.processes()); },
          "group"_a,
          py::keep_alive<1, 2>(),
          "Makes records of steps from now on. All processes call it.")
      .def("restart", &Passes::restart, "The next record's time begins.")
      .def(
          "record",
          [](Passes& self,
             std::int64_t step,
             const py::object& report,
             std::int64_t epoch,
             std::int64_t batch,
             double loss_scale,
             double data,
             double save,
             double validation) {
            return self.record(
                step, step_report(report, epoch, batch, loss_scale), data, save, validation);
          },
          "step"_a,
          "report"_a,
          "epoch"_a,
          "batch"_a,
          "loss_scale"_a,
          "data"_a,
          "save"_a,
          "validation"_a,
          "The record of the last step, in the first process. All processes call it.")
      .def("svg", &Passes::svg, "title"_a, "The last pass as a picture.")
      .def("warnings", &Passes::warnings)
      .def_property_readonly("timeline", &Passes::timeline)
      .def_property_readonly("program", &Passes::program);
}

}  // namespace millrace::python
