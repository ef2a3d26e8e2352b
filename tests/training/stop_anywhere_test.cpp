// A run of 40 steps that is stopped after any of them and goes on elsewhere is the run that was
// never stopped: same losses, same weights, bit for bit. What the controls at the end leave out of
// the restored state shows that the comparison would see it.
#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/saved_runs.hpp"

namespace millrace {
namespace {

using testing_files::Folder;
using testing_training::first_digits;
using testing_training::kSavedModel;
using testing_training::on_ranks;
using testing_training::saved_options;

constexpr int kSteps = 40;
constexpr int kStoppedMicroBatches = 4;  // of a mini-batch

const std::vector<OptimizerKind> kOptimizers = {
    OptimizerKind::Sgd, OptimizerKind::Adam, OptimizerKind::Lamb};
const std::vector<DType> kPrecisions = {DType::F32, DType::BF16, DType::F16};
const std::vector<std::string> kSchedules = {"gpipe", "1f1b", "zb-h1"};
/// In one process by these executors, and in as many as there are ranks.
const std::vector<std::string> kPlaces = {"sequential", "ranks", "processes"};
constexpr int kMostRanks = 4;

ModelSpec model_of(DType precision) {
  ModelSpec model = parse_model(kSavedModel);
  model.precision = precision;
  return model;
}

/// Mini-batches of 25, 25 and 10; in f16 the scale begins so high, and grows so fast, that steps
/// overflow now and then.
TestOptions options_of(OptimizerKind kind, DType precision, const std::string& folder) {
  TestOptions options = saved_options(folder);
  options.step.optimizer = optimizer_defaults(kind);
  options.fit.steps = kSteps;
  if (precision == DType::F16)
    options.step.loss_scale = parse_loss_scale("dynamic:initial=16777216,interval=3");
  return options;
}

/// Loss and loss scale by step, and the weights at the end.
struct Course {
  std::map<std::int64_t, std::pair<double, double>> losses;
  std::string weights;
  std::int64_t skipped = 0;
  std::int64_t samples = 0;
};

/// Behind so many steps, and so many micro-batches of the next.
struct Stop {
  int steps = kSteps;
  int micro_batches = 0;
};

void record(Trainer& trainer, const Dataset& data, Course& run, Stop at = {}) {
  std::stop_source stop;
  const int of_pass = trainer.executor().program().shape.micro_batches;
  trainer.on_pass = [&] {
    at.micro_batches -= at.steps == 0 ? of_pass : 0;
    if (at.steps == 0 && at.micro_batches == 0) stop.request_stop();
  };
  trainer.on_step = [&](const StepReport& report) {
    run.losses[trainer.state().counters().mini_batches] = {report.mean_loss(), report.loss_scale};
    run.skipped += report.skipped ? 1 : 0;
    run.samples += report.samples;
    if (--at.steps == 0 && at.micro_batches == 0) stop.request_stop();
  };
  trainer.fit(data, stop.get_token());
  run.weights = trainer.weights_hash();
}

const Course& whole_run(OptimizerKind kind, DType precision, const Dataset& data) {
  static std::map<std::pair<OptimizerKind, DType>, Course> runs;
  Course& run = runs[{kind, precision}];
  if (run.weights.empty()) {
    Trainer trainer = trainer_of(model_of(precision), options_of(kind, precision, ""));
    record(trainer, data, run);
    EXPECT_EQ(run.losses.size(), static_cast<std::size_t>(kSteps));
  }
  return run;
}

struct Case {
  OptimizerKind kind;
  DType precision;
  int ranks;
  std::string schedule;
  std::string place;
  int passes = 1;  // of a mini-batch
};

TestOptions in_passes(TestOptions options, int passes) {
  options.step.accumulate = passes;
  options.pipeline.shape.micro_batches = kStoppedMicroBatches / passes;
  return options;
}

/// From the checkpoint to the end, as the case says.
Course go_on(const Case& how, const std::string& folder, const Dataset& data) {
  TestOptions options = in_passes(options_of(how.kind, how.precision, ""), how.passes);
  options.pipeline.shape.ranks = how.ranks;
  options.pipeline.schedule = how.schedule;
  Course run;
  if (how.place != "processes") {
    options.run.executor = how.place;
    Trainer trainer(model_of(how.precision), options.pipeline, options);
    EXPECT_TRUE(trainer.resume(folder).changed.empty());
    record(trainer, data, run);
    return run;
  }
  std::mutex mutex;
  on_ranks(how.ranks, [&](Endpoint& endpoint, ProcessGroup& group) {
    const Program program = generate(
        how.schedule, {.ranks = how.ranks, .micro_batches = options.pipeline.shape.micro_batches});
    Trainer trainer(rank_parts(model_of(how.precision), {program}, options, endpoint, group));
    trainer.resume(folder);
    Course mine;
    record(trainer, data, mine);
    const std::lock_guard lock(mutex);
    run = mine;
  });
  return run;
}

/// Saved by a run of `passes` a mini-batch.
void stop_and_go_on(const Stop& stop, int passes, const Case& how, const Dataset& data) {
  const std::string at = std::to_string(stop.steps) + "_" + std::to_string(stop.micro_batches);
  SCOPED_TRACE("stopped after " + at + " of " + std::to_string(passes) + " passes, " +
               std::string(name_of(how.kind)) + ", " + name_of(how.precision) + ", " +
               std::to_string(how.ranks) + " ranks, " + how.schedule + ", " + how.place + ", " +
               std::to_string(how.passes) + " passes");
  const Course& whole = whole_run(how.kind, how.precision, data);
  const Folder folder("stop_anywhere_" + how.place + "_" + at);
  Trainer first = trainer_of(model_of(how.precision),
                             in_passes(options_of(how.kind, how.precision, folder.path()), passes));
  Course before;
  record(first, data, before, stop);
  EXPECT_EQ(first.state().counters().mini_batches, stop.steps);
  EXPECT_EQ(first.state().counters().partial.micro_batches, stop.micro_batches);
  const Course after = go_on(how, folder.path(), data);
  EXPECT_EQ(after.weights, whole.weights);
  EXPECT_EQ(before.losses.size() + after.losses.size(), whole.losses.size());
  for (const auto& [step, loss] : after.losses) EXPECT_EQ(loss, whole.losses.at(step)) << step;
}

/// Draws by a seed; what it draws makes every pair of values of two factors occur.
class Draw {
 public:
  template <class T>
  const T& of(const std::vector<T>& values) {
    return values[random_below({.seed = 20}, next_++, static_cast<std::uint32_t>(values.size()))];
  }

 private:
  std::uint32_t next_ = 0;
};

TEST(StopAnywhere, EveryStep_ResumesToTheSameBits) {
  const Dataset data = first_digits(60);
  const std::vector<int> ranks = {1, 2, 3, kMostRanks};
  Draw draw;
  std::set<std::tuple<int, int, std::string, std::string>> pairs;
  for (int stop = 1; stop < kSteps && !HasFailure(); ++stop)
    for (const bool again : {false, true}) {
      const Case how = {draw.of(kOptimizers),
                        draw.of(kPrecisions),
                        draw.of(ranks),
                        draw.of(kSchedules),
                        draw.of(kPlaces)};
      const std::vector<std::string> values = {std::string(name_of(how.kind)),
                                               name_of(how.precision),
                                               std::to_string(how.ranks),
                                               how.schedule,
                                               how.place};
      for (int i = 0; i < 5; ++i)
        for (int j = 0; j < i; ++j)
          pairs.emplace(
              i, j, values[static_cast<std::size_t>(i)], values[static_cast<std::size_t>(j)]);
      if (!again || stop % 4 == 0) stop_and_go_on({stop}, 1, how, data);
    }
  // 3, 3, 4, 3 and 3 values: 6 pairs of factors with 9 pairs of values, 4 with 12.
  EXPECT_EQ(pairs.size(), 6U * 9U + 4U * 12U);
  EXPECT_GT(whole_run(OptimizerKind::Adam, DType::F16, data).skipped, 1);
}

TEST(StopAnywhere, GoesOnWithTheFlowGraph) {
  const Dataset data = first_digits(60);
  for (const int stop : {1, 20, 39})
    stop_and_go_on({stop}, 1, {OptimizerKind::Adam, DType::BF16, 3, "1f1b", "flow-graph"}, data);
}

/// Where passes of one and of two micro-batches end, in every one of the 40 steps; what goes on has
/// passes that begin there.
TEST(StopAnywhere, BetweenPasses_ResumesToTheSameBits) {
  const Dataset data = first_digits(60);
  const std::vector<int> ranks = {1, 2, 3, kMostRanks};
  Draw draw;
  std::set<std::tuple<int, int, std::string>> seen;
  for (int steps = 0; steps < kSteps && !HasFailure(); ++steps) {
    const int micro_batches = 1 + steps % 3;
    const std::vector<int> fitting = micro_batches == 2 ? std::vector{2, 4} : std::vector{4};
    const Case how = {draw.of(kOptimizers),
                      draw.of(kPrecisions),
                      draw.of(ranks),
                      draw.of(kSchedules),
                      draw.of(kPlaces),
                      draw.of(fitting)};
    seen.emplace(how.ranks, how.passes, how.place);
    stop_and_go_on({steps, micro_batches}, draw.of(fitting), how, data);
  }
  EXPECT_GT(seen.size(), 12U);
}

TEST(StopAnywhere, BetweenPasses_FlowGraphContinues) {
  const Dataset data = first_digits(60);
  for (const int passes : {2, 4})
    stop_and_go_on({11, 2},
                   passes,
                   {OptimizerKind::Lamb, DType::F16, 3, "zb-h1", "flow-graph", 6 - passes},
                   data);
}

/// More often than once, and by the trainer that was stopped.
TEST(StopAnywhere, BetweenPasses_SameTrainerContinues) {
  const Dataset data = first_digits(60);
  const Course& whole = whole_run(OptimizerKind::Adam, DType::F32, data);
  const TestOptions options = in_passes(options_of(OptimizerKind::Adam, DType::F32, ""), 4);
  Trainer trainer(model_of(DType::F32), options.pipeline, options);
  Loader loader(data, trainer.loader_options());
  std::map<std::int64_t, double> losses;
  trainer.on_step = [&](const StepReport& report) {
    losses[trainer.state().counters().mini_batches] = report.mean_loss();
  };
  int stops = 0;
  for (bool stopped = true; stopped; ++stops) {
    std::stop_source stop;
    trainer.on_pass = [&] { stop.request_stop(); };
    stopped = trainer.fit(loader, stop.get_token()).stopped;
    EXPECT_EQ(loader.position(), trainer.state().counters().position);
  }
  EXPECT_EQ(stops, 3 * kSteps + 1);
  EXPECT_EQ(trainer.weights_hash(), whole.weights);
  for (const auto& [step, loss] : losses) EXPECT_EQ(loss, whole.losses.at(step).first) << step;
}

/// Puts one restored item back to what a new training has. What follows must be another run.
struct Control {
  const char* name;
  std::function<void(TrainingState&, const TrainingCounters& fresh)> omit;
};

template <class Change>
auto counter(Change change) {
  return [change](TrainingState& state, const TrainingCounters& fresh) {
    TrainingCounters counters = state.counters();
    change(counters, fresh);
    state.set_counters(counters);
  };
}

auto part(const std::string& name, const std::string& of = "layers.0.weight") {
  return [name, of](TrainingState& state, const TrainingCounters&) {
    const auto elements = static_cast<std::size_t>(state.read(of, name).elements());
    state.write(of, std::vector<float>(elements, 0.0F), name);
  };
}

TEST(StopAnywhere, NoticesEveryItemThatIsNotRestored) {
  const Dataset data = first_digits(60);
  const Folder folder("stop_anywhere_controls");
  const auto options_in = [](const std::string& place) {
    TestOptions options = options_of(OptimizerKind::Adam, DType::F16, place);
    // So that the number of updates moves Adam alone.
    options.step.learning_rate = {.base = 0.01};
    return options;
  };
  Course whole;
  Trainer uninterrupted = trainer_of(model_of(DType::F16), options_in(""));
  record(uninterrupted, data, whole);
  Trainer first = trainer_of(model_of(DType::F16), options_in(folder.path()));
  Course before;
  record(first, data, before, {20});
  const std::vector<Control> controls = {
      {"nothing", [](TrainingState&, const TrainingCounters&) {}},
      {"Adam's step",
       counter([](auto& now, const auto& fresh) { now.global_step = fresh.global_step; })},
      {"the first moment", part("first_moment")},
      {"the second moment", part("second_moment")},
      {"the master weights", part("value")},
      {"a running mean", part("value", "layers.2.running_mean")},
      {"a running variance", part("value", "layers.2.running_var")},
      {"the batches tracked", part("value", "layers.2.batches_tracked")},
      {"the position in the data",
       counter([](auto& now, const auto& fresh) { now.position.batch = fresh.position.batch; })},
      {"the epoch", counter([](auto& now, const auto& fresh) {
         now.position.epoch = fresh.position.epoch + 1;
       })},
      {"the loss scale", counter([](auto& now, const auto& fresh) {
         now.loss_scale.value = fresh.loss_scale.value;
       })},
      {"its growth count", counter([](auto& now, const auto&) {
         now.loss_scale.finite_in_a_row = now.loss_scale.finite_in_a_row == 0 ? 2 : 0;
       })},
      {"the random step",
       counter([](auto& now, const auto& fresh) { now.mini_batches = fresh.mini_batches + 1; })},
      {"the seed", counter([](auto& now, const auto& fresh) { now.seed = fresh.seed + 1; })}};
  for (const Control& control : controls) {
    Trainer trainer = trainer_of(model_of(DType::F16), options_in(""));
    const TrainingCounters fresh = trainer.state().counters();
    trainer.resume(folder.path());
    control.omit(trainer.state(), fresh);
    Course after;
    record(trainer, data, after, {kSteps - 20});
    const bool same =
        after.weights == whole.weights && std::ranges::includes(whole.losses, after.losses);
    EXPECT_EQ(same, std::string(control.name) == "nothing") << control.name;
  }
}

/// The same for what an unfinished update leaves behind.
TEST(StopAnywhere, MissingItem_IsNoticed) {
  const Dataset data = first_digits(60);
  const Folder folder("stop_anywhere_partial_controls");
  const Course& whole = whole_run(OptimizerKind::Adam, DType::F32, data);
  const auto options_in = [](const std::string& place) {
    return in_passes(options_of(OptimizerKind::Adam, DType::F32, place), 4);
  };
  Trainer first = trainer_of(model_of(DType::F32), options_in(folder.path()));
  Course before;
  record(first, data, before, {20, 2});
  const std::vector<Control> controls = {
      {"nothing", [](TrainingState&, const TrainingCounters&) {}},
      {"the partial sums", part("gradient")},
      {"the loss sums", counter([](auto& now, const auto& fresh) {
         now.partial.loss.sum = fresh.partial.loss.sum;
       })},
      {"the samples of the losses",
       counter([](auto& now, const auto& fresh) { now.partial.samples = fresh.partial.samples; })},
      {"the range of micro-batches", [](TrainingState& state, const TrainingCounters&) {
         TrainingCounters counters = state.counters();
         counters.partial.micro_batches = 3;
         state.set_counters(counters);
       }}};
  for (const Control& control : controls) {
    Trainer trainer = trainer_of(model_of(DType::F32), options_in(""));
    const TrainingCounters fresh = trainer.state().counters();
    trainer.resume(folder.path());
    control.omit(trainer.state(), fresh);
    Course after;
    bool same = false;
    try {
      record(trainer, data, after, {kSteps - 20});
      same = after.weights == whole.weights && std::ranges::includes(whole.losses, after.losses) &&
             after.samples == whole.samples - before.samples;
    } catch (const InvalidArgument&) {
      same = false;  // the losses weigh something else than the mini-batch
    }
    EXPECT_EQ(same, std::string(control.name) == "nothing") << control.name;
  }
}

}  // namespace
}  // namespace millrace
