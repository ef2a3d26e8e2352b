// Training stages that are Python objects: all of them in this process, or those of its rank.
#include <algorithm>
#include <pybind11/stl.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/training/settings.hpp"
#include "millrace/training/trainer.hpp"
#include "module/arguments.hpp"
#include "module/array_data.hpp"
#include "module/arrays.hpp"
#include "module/bindings.hpp"
#include "module/launched.hpp"
#include "module/let_go.hpp"
#include "module/python_stage.hpp"
#include "module/tensors.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

py::object report_of(const StepReport& report, const std::vector<Stage>& sinks) {
  py::dict others;  // mean, by stage
  for (std::size_t sink = 0; sink < report.other_losses.size(); ++sink)
    others[py::int_(sinks[sink].value)] = report.other_losses[sink].mean();
  return made("StepReport",
              report.global_step,
              report.samples,
              report.mean_loss(),
              report.loss.sum,
              report.loss.weight,
              report.gradient_norm,
              report.clip_factor,
              report.learning_rate,
              report.skipped,
              report.seconds,
              others);
}

py::object epoch_of(const EpochReport& epoch) {
  return made("EpochReport",
              epoch.epoch,
              epoch.mean_loss(),
              epoch.updates,
              epoch.skipped,
              epoch.samples,
              epoch.seconds);
}

py::object validation_of(const ValidationReport& report) {
  return made("ValidationReport",
              report.step,
              report.epoch,
              report.score.mean_loss(),
              report.score.accuracy(),
              report.score.samples,
              report.seconds,
              report.is_best,
              report.without_improvement);
}

py::object fit_of(const FitReport& report) {
  py::list epochs, validations;
  for (const EpochReport& epoch : report.epochs) epochs.append(epoch_of(epoch));
  for (const ValidationReport& validation : report.validations)
    validations.append(validation_of(validation));
  return made("FitReport",
              py::tuple(epochs),
              report.samples,
              report.seconds,
              py::tuple(validations),
              report.early_stop);
}

/// Arrays to validate by: a pair of inputs and targets, or the last share of those of the training.
/// Nothing where `given` is None.
std::optional<Dataset> validation_of(const py::object& given, Dataset& data, bool sequences) {
  if (given.is_none()) return std::nullopt;
  if (PyFloat_Check(given.ptr()) != 0 || PyLong_Check(given.ptr()) != 0) {
    TrainTest parts = hold_out(data, given.cast<double>());
    data = std::move(parts.train);
    return std::move(parts.test);
  }
  const bool is_pair = py::isinstance<py::tuple>(given) && py::len(given) == 2;
  require(is_pair, "validation: must be (inputs, targets), or a share of the samples, as 0.1");
  const py::tuple pair(given);
  return dataset_of(pair[0], pair[1], sequences);
}

/// The stages of a program as a user gives them: one object each, replica after replica, or a
/// callable that makes one of its number. Needs the lock.
class StageObjects {
 public:
  StageObjects(const py::object& given, const Shape& shape) : given_(given), shape_(shape) {
    if (PyCallable_Check(given.ptr()) != 0) return;
    all_ = py::list(given);
    const int needed = shape.stages() * shape.replicas();
    require(static_cast<int>(all_->size()) == needed, [&] {
      return "the program needs " + std::to_string(needed) + " stages, got " +
             std::to_string(all_->size()) +
             "; a callable stage(number) makes those of this process alone";
    });
  }

  /// Its place in the list.
  [[nodiscard]] std::size_t number_of(const Place& place) const {
    return static_cast<std::size_t>(place.replica.value * shape_.stages() + place.stage.value);
  }

  [[nodiscard]] py::object at(const Place& place) const {
    if (!all_) return given_(place.stage.value);
    return (*all_)[number_of(place)];
  }

 private:
  py::object given_;
  const Shape& shape_;
  std::optional<py::list> all_;
};

/// A Trainer with the Python objects that it calls.
class PythonTrainer {
 public:
  PythonTrainer(const Program& program, const py::object& stages, TrainerOptions options)
      : self_(launched()), options_(std::move(options)) {
    shape_ = program.shape;
    const StageObjects objects(stages, shape_);
    const BodyOf body_of = [&](const Place& place) {
      const py::gil_scoped_acquire locked;
      return made_body(objects.at(place), objects.number_of(place));
    };
    trainer_ = unlocked([&] { return trainer_of(*self_, program, body_of, options_); });
  }

  PythonTrainer(const PythonTrainer&) = delete;
  PythonTrainer& operator=(const PythonTrainer&) = delete;

  /// Threads of the executor may still want the lock.
  ~PythonTrainer() {
    unlocked([&] { trainer_.reset(); });
  }

  py::object step(const py::object& inputs,
                  const py::object& targets,
                  std::optional<double> weight) {
    require_same_arrays();
    ArrayData data(inputs, targets, shape_.micro_batches * options_.step.accumulate, shape_.slices);
    const double total = weight ? *weight : static_cast<double>(data.samples());
    return report_of(unlocked([&] { return trainer_->step(data, total); }), shape_.sinks);
  }

  Score evaluate(const py::object& inputs, const py::object& targets) {
    require_same_arrays();
    ArrayData data(inputs, targets, shape_.micro_batches, shape_.slices);
    return unlocked([&] { return trainer_->evaluate(data); });
  }

  /// The array of each output, the units' behind one another; None where the last stage lives in
  /// another process.
  py::object predict(const py::object& inputs) {
    require_same_arrays();
    ArrayData data(inputs, py::none(), shape_.micro_batches, shape_.slices);
    std::vector<TensorList> units = unlocked([&] { return trainer_->predict(data); });
    if (units.front().empty()) return py::none();
    py::tuple outputs(units.front().size());
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] = joined(units, i);
    if (outputs.size() == 1) return outputs[0];
    return outputs;
  }

  /// Trains over the arrays as the library does over a data set. What is called back is called with
  /// the lock.
  FitReport fit(const py::object& inputs,
                const py::object& targets,
                const py::object& validation,
                const py::object& on_step,
                const py::object& on_epoch,
                const py::object& on_validation) {
    require_same_arrays();
    Dataset data = dataset_of(inputs, targets, shape_.slices > 1);
    const std::optional<Dataset> held = validation_of(validation, data, shape_.slices > 1);
    tell(trainer_->on_step, on_step, [this](const StepReport& report) {
      return report_of(report, shape_.sinks);
    });
    tell(trainer_->on_epoch, on_epoch, [](const EpochReport& epoch) { return epoch_of(epoch); });
    tell(trainer_->on_validation, on_validation, [](const ValidationReport& validated) {
      return validation_of(validated);
    });
    for (PythonStage* stage : first_) stage->copy_inputs(true);
    try {
      FitReport report = unlocked([&] { return trainer_->fit(data, {}, held ? &*held : nullptr); });
      end_fit();
      return report;
    } catch (...) {
      end_fit();
      throw;
    }
  }

  Trainer& trainer() { return *trainer_; }
  const Trainer& trainer() const { return *trainer_; }

 private:
  std::unique_ptr<StageBody> made_body(const py::object& stage, std::size_t number) {
    auto body = std::make_unique<PythonStage>(stage, number);
    stages_.push_back(body.get());
    if (number % static_cast<std::size_t>(shape_.stages()) == 0) first_.push_back(body.get());
    return body;
  }

  template <class Report, class Made>
  static void tell(std::function<void(const Report&)>& listener,
                   const py::object& call,
                   const Made& made) {
    listener = [call, made](const Report& report) {
      const py::gil_scoped_acquire locked;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();  // Ctrl-C between two steps
      if (!call.is_none()) call(made(report));
    };
  }

  void end_fit() {
    trainer_->on_step = {};
    trainer_->on_epoch = {};
    trainer_->on_validation = {};
    for (PythonStage* stage : first_) stage->copy_inputs(false);
  }

  /// Output `i` of all units: slices side by side, micro-batches one below the other.
  [[nodiscard]] py::object joined(std::vector<TensorList>& units, std::size_t i) const {
    const py::object concatenate = py::module_::import("numpy").attr("concatenate");
    const auto slices = static_cast<std::size_t>(shape_.slices);
    py::list rows;
    for (std::size_t first = 0; first < units.size(); first += slices) {
      py::list parts;
      for (std::size_t slice = 0; slice < slices; ++slice)
        parts.append(to_array(std::move(units[first + slice][i])));
      rows.append(slices == 1 ? py::object(parts[0]) : concatenate(parts, "axis"_a = 1));
    }
    return concatenate(rows);
  }

  void require_same_arrays() const {
    for (const PythonStage* stage : stages_) stage->require_same_arrays();
  }

  std::shared_ptr<Launched> self_;
  TrainerOptions options_;
  std::vector<PythonStage*> stages_;
  std::vector<PythonStage*> first_;  // those that take inputs of the model
  std::unique_ptr<Trainer> trainer_;
  Shape shape_;
};

/// Python's stages have no layers to choose from.
Program recomputed(const Program& program, TrainerOptions& options) {
  const Recompute recompute = std::exchange(options.run.recompute, {});
  require(recompute.kind == RecomputeKind::None || recompute.kind == RecomputeKind::All,
          "recompute " + to_string(recompute) + ": must be true or false");
  return recompute.kind == RecomputeKind::All ? insert_recompute(program) : program;
}

std::unique_ptr<PythonTrainer> made_trainer(const Program& program,
                                            const py::object& stages,
                                            const py::kwargs& keywords) {
  TrainerOptions options = options_of(keywords);
  const Program run = recomputed(program, options);
  return std::make_unique<PythonTrainer>(run, stages, std::move(options));
}

py::object score_of(const Score& score) {
  return made("Score",
              score.mean_loss(),
              score.loss.sum,
              score.loss.weight,
              score.accuracy(),
              score.samples);
}

void add_loss(
    PythonUnit& unit, double sum, double weight, std::int64_t correct, std::int64_t evaluated) {
  require(unit.is_last, "add_loss is for stages with a loss; this one has no targets");
  unit.loss += {sum, weight, correct, evaluated};
}

void bind_unit(py::module_& module) {
  py::class_<PythonUnit, std::shared_ptr<PythonUnit>>(
      module,
      "Unit",
      "What a pass knows about the unit it works on. `kept` is the stage's: what it puts there in "
      "its forward it finds in the unit's backward passes.")
      .def_readonly("micro_batch", &PythonUnit::micro_batch, "Its number in the mini-batch.")
      .def_readonly("slice", &PythonUnit::slice, "Its number in the micro-batch.")
      .def_readonly("slices", &PythonUnit::slices, "Of a micro-batch; 1: sequences are whole.")
      .def_readonly("first_sample", &PythonUnit::first_sample, "Of its rows in the mini-batch.")
      .def_readonly("first_position", &PythonUnit::first_position, "Of its slice in the sequence.")
      .def_readonly("step", &PythonUnit::step, "Mini-batches before this one.")
      .def_readonly("training", &PythonUnit::training, "False in evaluate and predict.")
      .def_readonly("loss_scale",
                    &PythonUnit::loss_scale,
                    "The last stage multiplies the gradient of its loss by this.")
      .def_readonly("targets", &PythonUnit::targets, "A tuple of arrays, for the last stage.")
      .def_readwrite("kept", &PythonUnit::kept, "Whatever the stage keeps with the unit.")
      .def_property_readonly(
          "key",
          [](const PythonUnit& self) {
            return py::make_tuple(self.seed, self.step, self.micro_batch);
          },
          "Seeds random numbers that are the same in every schedule: "
          "numpy.random.default_rng(unit.key).")
      .def("add_loss",
           &add_loss,
           "sum"_a,
           "weight"_a,
           "correct"_a = 0,
           "evaluated"_a = 0,
           "Adds the unit's loss, summed over `weight` samples; for the last stage's forward.");
}

}  // namespace

void bind_training(py::module_& module) {
  bind_unit(module);
  py::class_<PythonTrainer>(module,
                            "Trainer",
                            "Trains stages that are Python objects by any schedule: one "
                            "mini-batch in, one update of every stage out. All ranks in this "
                            "process or, where `millrace launch` started it, one of them.")
      .def(py::init(&made_trainer),
           "program"_a,
           "stages"_a,
           ("`stages`: one object per stage of the program, replica after replica (see "
            "millrace.Stage), of which a process of `millrace launch` keeps its own; or a callable "
            "stage(number), which makes no more than those. `executor` (sequential) is for one "
            "process. The optimizer, a name or millrace.AdamW(...), has the largest learning rate. "
            "None stands for the default.\n\nKeywords:\n" +
            keyword_help())
               .c_str())
      .def("step",
           &PythonTrainer::step,
           "inputs"_a,
           "targets"_a = py::none(),
           py::kw_only(),
           "weight"_a = py::none(),
           "One step over a mini-batch: arrays with a row per sample. `weight`: what the losses' "
           "weights add up to, the number of samples unless said. A traceback in a stage raises "
           "StepError; the next step works.")
      .def(
          "fit",
          [](PythonTrainer& self,
             const py::object& inputs,
             const py::object& targets,
             const py::object& validation,
             const py::object& on_step,
             const py::object& on_epoch,
             const py::object& on_validation) {
            return fit_of(self.fit(inputs, targets, validation, on_step, on_epoch, on_validation));
          },
          "inputs"_a,
          "targets"_a = py::none(),
          py::kw_only(),
          "validation"_a = py::none(),
          "on_step"_a = py::none(),
          "on_epoch"_a = py::none(),
          "on_validation"_a = py::none(),
          "Trains over arrays with a row per sample, shuffled again in every epoch by the seed, "
          "and "
          "saves checkpoints where there is a `save_folder`. What is called back is given a "
          "StepReport, an EpochReport or a ValidationReport. `validation` is evaluated by "
          "`validate_every`: (inputs, targets), or the last share of the samples, as 0.1, which is "
          "then not trained on. After `resume` it goes on where that was saved. The "
          "losses' weights of a mini-batch add up to its samples.")
      .def(
          "evaluate",
          [](PythonTrainer& self, const py::object& inputs, const py::object& targets) {
            return score_of(self.evaluate(inputs, targets));
          },
          "inputs"_a,
          "targets"_a,
          "The loss over arrays, without a change.")
      .def("predict",
           &PythonTrainer::predict,
           "inputs"_a,
           "What the last stage gives, a row per sample; a tuple where it gives several arrays; "
           "None "
           "where it lives in another process.")
      .def(
          "weights_hash",
          [](PythonTrainer& self) {
            return unlocked([&] { return self.trainer().weights_hash(); });
          },
          "xxh3-128 over all parameters: equal bits, equal hash.")
      .def(
          "save",
          [](PythonTrainer& self) {
            require(!self.trainer().options().save.folder.empty(),
                    "save() has no folder; make the trainer with save_folder=\"...\"");
            const SaveReport report = unlocked([&] { return self.trainer().save(); });
            require(report.fault.empty(), report.fault);
            return report.folder;
          },
          "Saves a checkpoint into `save_folder`; its folder.")
      .def(
          "resume",
          [](PythonTrainer& self, const py::object& path) {
            const std::string folder = path_of(path);
            return unlocked([&] { return self.trainer().resume(folder).folder; });
          },
          "path"_a,
          "Takes the state from a checkpoint; its folder.")
      .def(
          "warnings",
          [](const PythonTrainer& self) { return self.trainer().warnings(); },
          "What is right but not as good as the schedule promises.")
      .def_property_readonly(
          "global_step",
          [](const PythonTrainer& self) { return self.trainer().global_step(); },
          "Updates done.")
      .def_property_readonly(
          "timeline",
          [](const PythonTrainer& self) { return to_arrays(self.trainer().executor().timeline()); },
          "Start and end of every action of the last step in seconds, an array per rank.");
}

}  // namespace millrace::python
