// The matrix of grids that all give the same bits: copies of a pipeline by places, over threads and
// sockets, in many ways to run each; and how a case runs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "support/pairwise.hpp"
#include "training/first_digits.hpp"
#include "training/on_ranks.hpp"
#include "training/sample_files.hpp"
#include "training/saved_runs.hpp"

namespace millrace::testing_training {

/// The factors, in their order.
enum GridFactor : std::size_t {
  kGridCopies,
  kGridPlaces,
  kGridSchedule,
  kGridLink,
  kGridPasses,
  kGridRecompute,
  kGridBatch,
  kGridModel,
  kGridPrecision,
  kGridRule,
  kGridState,
  kGridCourse
};

inline constexpr int kGridLeaves = 16;  ///< M, the micro-batches of an update

inline const test::Matrix& grid_matrix() {
  static const test::Matrix matrix(
      {{"copies", {"1", "2", "4"}},
       {"places", {"1", "2", "4"}},
       {"schedule", {"1f1b", "zb-h1", "interleaved", "zb-v", "dualpipe-v"}},
       {"link", {"threads", "shm", "ipc", "tcp", "mixed"}},
       {"passes", {"1", "2"}},
       {"recompute", {"none", "all"}},
       {"batch", {"even", "ragged", "half"}},
       {"model", {"mlp", "gpt", "tied gpt"}},
       {"precision", {"f32", "bf16"}},
       {"rule", {"adamw", "lamb"}},
       {"state", {"whole", "sharded"}},
       {"course", {"whole", "resumed"}}},
      {{"one process sends nobody anything",
        [](const test::Choice& c) {
          return c[kGridCopies] == 0 && c[kGridPlaces] == 0 && c[kGridLink] > 0;
        }},
       {"dualpipe-v has two micro-batches a rank", [](const test::Choice& c) {
          const std::size_t of_pass = kGridLeaves >> (c[kGridCopies] + c[kGridPasses]);
          return c[kGridSchedule] == 4 && of_pass < std::size_t{2} << c[kGridPlaces];
        }}});
  return matrix;
}

/// One way to train on a grid; as it stands, in one process.
struct GridCase {
  int copies = 1, places = 1;
  std::string schedule = "1f1b", link = "threads";
  int passes = 1;
  std::string recompute = "none", batch = "even", model = "mlp";
  DType precision = DType::F32;
  std::string rule = "adamw";
  bool is_sharded = false;
  bool is_resumed = false;

  [[nodiscard]] Grid grid() const { return {copies, places}; }
};

inline GridCase grid_case_of(const test::Choice& choice) {
  const test::Matrix& matrix = grid_matrix();
  return {1 << choice[kGridCopies],
          1 << choice[kGridPlaces],
          matrix.value(choice, "schedule"),
          matrix.value(choice, "link"),
          static_cast<int>(choice[kGridPasses]) + 1,
          matrix.value(choice, "recompute"),
          matrix.value(choice, "batch"),
          matrix.value(choice, "model"),
          choice[kGridPrecision] == 1 ? DType::BF16 : DType::F32,
          matrix.value(choice, "rule"),
          choice[kGridState] == 1,
          choice[kGridCourse] == 1};
}

inline constexpr std::int64_t kGridSteps = 3;

inline const Dataset& grid_data(const GridCase& of) {
  static const Dataset images = first_digits(89);
  static const TrainTest verses =
      text_samples("verses", built_in_text().substr(0, 8000), {.positions = 8});
  return of.model == "mlp" ? images : verses.train;
}

inline ModelSpec grid_model(const GridCase& of) {
  const std::string gpt = "gpt:layers=2,d=16,heads=2,context=8,dropout=0.1,vocabulary=" +
                          std::to_string(of.model == "mlp" ? 0 : grid_data(of).classes);
  ModelSpec model = parse_model(of.model == "mlp"   ? "mlp:64-96-96-16-16-16-16-16-10,dropout=0.2"
                                : of.model == "gpt" ? gpt
                                                    : gpt + ",tied=yes");
  model.precision = of.precision;
  return model;
}

/// Mini-batches of 32; of 23, so that some micro-batches have two samples and some one; or of 7,
/// which leave most of them empty.
inline TestOptions grid_options(const GridCase& of) {
  TestOptions options = plain_options(of.places, kGridLeaves / of.copies / of.passes);
  options.pipeline.schedule = of.schedule;
  options.step.accumulate = of.passes;
  options.step.accumulate_order = AccumulateOrder::Tree;
  options.run.recompute = parse_recompute(of.recompute);
  options.step.optimizer =
      optimizer_defaults(of.rule == "lamb" ? OptimizerKind::Lamb : OptimizerKind::AdamW);
  options.step.optimizer.weight_decay = 0.05;
  options.step.shard_optimizer = of.is_sharded;
  options.step.clip_norm = 0.25;
  options.step.learning_rate.base = 0.01;
  options.step.seed = 5;
  options.fit.batch_size = of.batch == "even" ? 32 : of.batch == "ragged" ? 23 : 7;
  options.fit.steps = kGridSteps;
  return options;
}

/// What every process of a grid has to tell.
struct GridRun {
  std::map<std::int64_t, double> losses, norms;
  std::string weights;

  friend bool operator==(const GridRun&, const GridRun&) = default;
};

/// Trains on, to the end or through so many steps; adds to the run.
inline void go_on(Trainer& trainer, const GridCase& of, GridRun& run, int steps) {
  std::stop_source stop;
  trainer.on_step = [&](const StepReport& report) {
    run.losses[report.global_step] = report.mean_loss();
    run.norms[report.global_step] = report.gradient_norm;
    if (--steps == 0) stop.request_stop();
  };
  trainer.fit(grid_data(of), stop.get_token());
  run.weights = trainer.weights_hash();
}

inline std::vector<ChannelDepth> grid_depths(const GridCase& of, const Program& program) {
  return on_grid(channel_depths(grid_model(of), {program}, grid_options(of), of.copies), of.grid());
}

/// What is shared for passes is what the plan foretells, made once; and nothing before it is
/// needed.
inline void expect_planned(const Endpoint& endpoint, const std::vector<ChannelDepth>& depths) {
  for (const SharedBytes& of : endpoint.shared_bytes()) {
    const std::size_t planned = planned_shared_bytes(depths, endpoint.rank(), of.receiver);
    EXPECT_TRUE(of.of_passes == planned || of.of_passes == 0)
        << of.of_passes << " bytes from " << endpoint.rank().value << " to " << of.receiver.value
        << ", planned " << planned;
  }
}

inline std::vector<std::unique_ptr<Endpoint>> grid_endpoints(const GridCase& of,
                                                             const Program& program,
                                                             const PrivateDirectory& directory) {
  const auto depths = grid_depths(of, program);
  if (of.link == "shm") {
    SharedMemoryOptions options;
    options.world = of.grid().processes();
    options.depths = depths;
    options.directory = directory.path();
    return shared_memory_mesh(options);
  }
  if (of.link != "threads") {
    ZeroMqOptions options;
    options.world = of.grid().processes();
    options.link = of.link == "ipc" ? ZeroMqLink::Ipc : ZeroMqLink::Tcp;
    options.depths = depths;
    options.directory = directory.path();
    return zeromq_mesh(options, of.link == "mixed" ? 2 : 0);
  }
  InProcessHub hub(of.grid().processes(), depths);
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int i = 0; i < of.grid().processes(); ++i) endpoints.push_back(hub.endpoint(Rank{i}));
  return endpoints;
}

/// Every place of every copy with a process' means, from a checkpoint if there is a folder; saves
/// into it otherwise, after so many steps (0: all).
inline GridRun run_places(const GridCase& of,
                          const std::string& from,
                          const std::string& into,
                          int steps) {
  const Program program = generate(
      of.schedule,
      {.ranks = of.places, .micro_batches = grid_options(of).pipeline.shape.micro_batches});
  TestOptions options = grid_options(of);
  options.save.folder = into;
  options.save.files = std::make_shared<Hasty>();
  std::mutex mutex;
  std::vector<GridRun> runs;
  const auto depths = grid_depths(of, program);
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  on_ranks(grid_endpoints(of, program, directory), [&](Endpoint& endpoint, ProcessGroup& group) {
    const GridPosition seat(endpoint, of.grid());
    Trainer trainer(rank_parts(grid_model(of), {program}, options, seat, group));
    if (!from.empty()) {
      EXPECT_TRUE(trainer.resume(from).changed.empty());
    }
    GridRun run;
    go_on(trainer, of, run, steps);
    expect_planned(endpoint, depths);
    const std::lock_guard lock(mutex);
    runs.push_back(run);
  });
  EXPECT_EQ(runs.size(), static_cast<std::size_t>(of.grid().processes()));
  for (const GridRun& run : runs) EXPECT_EQ(run, runs.front());
  return runs.empty() ? GridRun{} : runs.front();
}

/// Where the first step of a resumed training runs: on another grid, by another schedule.
inline GridCase elsewhere(const GridCase& of) {
  GridCase other = of;
  other.copies = of.copies == 2 ? 4 : 2;
  other.places = of.places == 2 ? 1 : 2;
  other.schedule = of.schedule == "zb-v" ? "1f1b" : "zb-v";
  other.link = "threads";
  other.passes = 3 - of.passes;
  other.is_sharded = !of.is_sharded;
  return other;
}

inline GridRun run(const GridCase& of) {
  if (!of.is_resumed) return run_places(of, "", "", 0);
  const testing_files::Folder folder("grid_case_" + of.link);
  GridRun before = run_places(elsewhere(of), "", folder.path(), 1);
  EXPECT_EQ(before.losses.size(), 1U);
  GridRun after = run_places(of, folder.path(), "", 0);
  after.losses.merge(before.losses);
  after.norms.merge(before.norms);
  return after;
}

/// What it has to give: one process, one stage, one pass.
inline const GridRun& wanted(const GridCase& of) {
  static std::map<std::tuple<std::string, std::string, DType, std::string>, GridRun> known;
  GridRun& run = known[{of.batch, of.model, of.precision, of.rule}];
  if (run.weights.empty()) {
    const GridCase alone{
        .batch = of.batch, .model = of.model, .precision = of.precision, .rule = of.rule};
    Trainer trainer = trainer_of(grid_model(alone), grid_options(alone));
    go_on(trainer, alone, run, 0);
  }
  return run;
}

}  // namespace millrace::testing_training
