// The options of `millrace train`, and how they become a program, a model, data and trainer
// options. An error names the option, the value and the allowed values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <CLI/CLI.hpp>

#include "cli/train/settings.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/run/grid.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/trainer_options.hpp"

namespace millrace::cli {

/// Default number of ranks of a pipeline: one per core, from 2 to 4.
[[nodiscard]] inline std::int64_t ranks_of_machine() {
  return std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 2, 4);
}

/// The settings that need --validation.
inline constexpr std::array<std::string_view, 4> kOfValidation = {
    "validate_every", "keep_best", "early_stopping", "min_delta"};

/// The checkpoint or the weights that a run begins with.
struct StartFlags {
  std::string resume, weights;
  bool narrow_weights = false;
  int attempt = 0;   ///< as LaunchConfig::attempt
  double began = 0;  ///< as LaunchConfig::began

  // Set by take_settings.
  std::string from;            ///< what to resume; empty: nothing
  std::int64_t from_step = 0;  ///< of the newest checkpoint there that can be read
  std::string divisor;         ///< kFeatureDivisor of that; empty: none
  std::string taken;           ///< the options of the pipeline that come from there: "-p 2, ..."
};

/// The files that record a run.
struct WatchFlags {
  std::string log, metrics, report;
  bool inspect_gradients = false;

  /// Whether a file needs the records of steps.
  [[nodiscard]] bool records() const { return !log.empty() || !metrics.empty() || !report.empty(); }
};

/// The flags of `train` that are not in the table of settings. The default job: the built-in
/// digits, eight linear layers.
struct TrainFlags {
  std::string model = "mlp:64-96-96-96-96-96-96-96-10";
  std::string data = "digits";
  std::string lengths = "fixed";
  std::string validation;  ///< data, or a share of the training data; empty: none
  std::string schedule = "1f1b";
  std::string partition = "even";
  std::string precision = "f32";
  std::string plan, profile, trace, svg, config, scale_lr;
  std::int64_t data_parallel = 1;
  std::int64_t ranks = ranks_of_machine();
  std::int64_t micro_batches = 8;
  std::optional<std::int64_t> chunks, slices, effective_batch, micro_batch_size;
  std::optional<double> dropout;
  StartFlags start;
  WatchFlags watch;
  bool json = false;
  bool dry_run = false;
};

/// Everything that a run needs, checked against each other.
struct TrainJob {
  TrainFlags flags;
  SettingValues given;  ///< settings that are not presets
  ModelSpec model;
  TrainTest data;
  Program program;
  std::vector<int> boundaries;  ///< of its stages, from 0 to the number of layers
  TrainerOptions options;
  std::string ranks_line;  ///< how the number of ranks was chosen, if it was not given

  /// Data-parallel replicas, and the ranks of each.
  [[nodiscard]] Grid grid() const {
    return {static_cast<int>(flags.data_parallel), program.shape.ranks};
  }

  [[nodiscard]] Plan plan() const {
    return {program, {boundaries.begin() + 1, boundaries.end() - 1}};
  }

  /// Samples of a mini-batch that is not shortened by the end of the data.
  [[nodiscard]] std::int64_t full_batch() const {
    return std::min(options.fit.batch_size, data.train.epoch_size());
  }

  /// Of a sample; 1 if samples are not sequences.
  [[nodiscard]] std::int64_t positions() const { return std::max<std::int64_t>(1, model.context); }

  /// Mini-batches of an epoch.
  [[nodiscard]] std::int64_t batches_per_epoch() const;

  /// Mini-batches in all.
  [[nodiscard]] std::int64_t steps() const;

  /// The epochs that will begin.
  [[nodiscard]] std::int64_t epochs() const;
};

/// Adds the flags to the subcommand; `flags` must outlive it.
void add_train_flags(CLI::App& subcommand, TrainFlags& flags);

/// Throws InvalidArgument for a file to write whose ending names another format.
void check_watch(const WatchFlags& flags);

/// For a run that resumes a checkpoint: sets every option that is not given to the value of the
/// checkpoint. `world`: the processes of the job, 0 for one; -p and -d are set if the processes
/// divide them evenly. Throws InvalidArgument, also for an option with an empty value, and
/// DataError if no checkpoint can be read.
void take_settings(CLI::App& subcommand, StartFlags& flags, int world = 0);

/// Reads the data, parses the model, makes the program and the partition. Throws InvalidArgument.
TrainJob make_job(const CLI::App& subcommand, const TrainFlags& flags);

/// As make_job without data; supply_data completes it.
TrainJob plan_job(const CLI::App& subcommand, const TrainFlags& flags);

/// Sets the program, the mini-batch and the partition of a job. `alone`: all ranks are in this
/// process.
void add_program(const CLI::App& subcommand, bool alone, TrainJob& job);

/// The data that the flags name. Throws InvalidArgument.
TrainTest read_data(const TrainJob& job);

/// The share of the training data that --validation holds out; none where it names data. Throws
/// InvalidArgument for a number out of its range.
std::optional<double> held_out_share(const std::string& validation);

/// Sets the job's data, or sets of the right sizes without features, for a rank that has neither
/// the first nor the last stage.
void supply_data(TrainJob& job, TrainTest data);

/// Samples of texts: windows or documents. Throws InvalidArgument for data that is not text.
Lengths lengths_of(const TrainFlags& flags);

/// Throws InvalidArgument for a number out of its range.
void check_batch(const TrainFlags& flags);

/// Sets the samples of a mini-batch. `micro_batches` names their source in messages: an option or
/// the plan. Throws InvalidArgument.
void set_batch(const ParameterText& micro_batches, TrainJob& job);

/// Scales the learning rate with the mini-batch. Throws InvalidArgument.
void scale_rate(const TrainFlags& flags, TrainerOptions& options);

/// Samples per update, micro-batches and their sizes, and the learning rate if it was scaled.
[[nodiscard]] std::string batch_line(const TrainJob& job);

/// Name, in checkpoints and exported weights, of the divisor of the features of a CSV file. A model
/// only fits features that were divided by it.
inline constexpr const char* kFeatureDivisor = "feature_divisor";

/// That of the checkpoint or the weights that a run begins with; 0: they name none.
[[nodiscard]] float divisor_of(const StartFlags& flags);

}  // namespace millrace::cli
