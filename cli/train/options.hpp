// What `millrace train` was asked for, as typed, and how that becomes a program, a model, data and
// trainer options. Every refusal names the option as typed, the value and the bound.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/train/batch.hpp"
#include "cli/train/checkpoint_flags.hpp"
#include "cli/train/rule.hpp"
#include "cli/train/watch_flags.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/run/grid.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/trainer_options.hpp"

namespace millrace::cli {

/// Ranks of a pipeline where nothing says how many: one for each core, from 2 to 4.
[[nodiscard]] inline std::int64_t ranks_of_machine() {
  return std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 2, 4);
}

/// The flags of `train`, with the default job: the built-in digits, eight linear layers.
struct TrainFlags {
  std::string model = "mlp:64-96-96-96-96-96-96-96-10";
  std::string data = "digits";
  std::string lengths = "fixed";
  std::string schedule = "1f1b";
  std::string executor = "flow-graph";
  std::string last_batch = "update";
  std::string partition = "even";
  std::string precision = "f32";
  std::string plan, profile, trace, svg, config;
  std::int64_t data_parallel = 1;
  std::int64_t ranks = ranks_of_machine();
  std::int64_t micro_batches = 8;
  std::int64_t threads_per_rank = 1;
  std::int64_t seed = 1;
  std::optional<std::int64_t> chunks, slices, epochs, steps;
  std::optional<double> dropout;
  BatchFlags batch;
  RuleFlags rule;
  CheckpointFlags checkpoints;
  WatchFlags watch;
  std::string recompute = "none";
  bool shard_optimizer = false;
  bool json = false;
};

/// Everything that a run needs, checked against each other.
struct TrainJob {
  TrainFlags flags;
  ModelSpec model;
  TrainTest data;
  Program program;
  TrainerOptions options;
  std::string ranks_line;  ///< how the number of ranks was chosen, where it was not typed

  /// The copies of the pipeline, and the places of each.
  [[nodiscard]] Grid grid() const {
    return {static_cast<int>(flags.data_parallel), program.shape.ranks};
  }

  /// Samples of a mini-batch that is not cut short by the end of the data.
  [[nodiscard]] std::int64_t full_batch() const;

  /// Of a sample; 1 where samples are no sequences.
  [[nodiscard]] std::int64_t positions() const { return std::max<std::int64_t>(1, model.context); }

  /// The epochs that will be begun.
  [[nodiscard]] std::int64_t epochs() const;
};

/// Adds the flags to the verb; `flags` must outlive it.
void add_train_flags(CLI::App& verb, TrainFlags& flags);

/// Puts what the file says into every option that was not given on the command line. Keys are the
/// long names without dashes, in TOML or INI form. Throws InvalidArgument.
void read_config(CLI::App& verb, const std::string& file);

/// Reads the data, parses the model, makes the program and the cut. Throws InvalidArgument.
TrainJob make_job(const CLI::App& verb, const TrainFlags& flags);

/// As make_job without looking at the data; supply_data completes it.
TrainJob plan_job(const CLI::App& verb, const TrainFlags& flags);

/// Notes the pipeline in what checkpoints say of the run, for take_settings. `alone`: all ranks are
/// in this process.
void note_pipeline(const TrainFlags& flags, bool alone, TrainJob& job);

/// The data that the flags name. Throws InvalidArgument.
TrainTest read_data(const TrainJob& job);

/// Gives the job its data, or sets of the right sizes whose samples have no features: what a rank
/// needs that has neither the first nor the last stage.
void supply_data(TrainJob& job, TrainTest data);

}  // namespace millrace::cli
