// One training from the job to its report: all ranks in this process, or one of them.
#pragma once

#include <cstdint>
#include <deque>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/train/checkpoints.hpp"
#include "cli/train/options.hpp"
#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace::cli {

/// Of a model of text.
struct TextOutcome {
  bool padded = false;   ///< samples had lengths of their own
  double gzip_bits = 0;  ///< that `gzip -9` needs for a byte of the text that was evaluated
  std::string sample;    ///< text that the model continues from its default prompt; may be empty
};

/// The matrix multiplications of a run, and the machine's rate of them (product_rate).
struct ProductUse {
  double operations_per_sample = 0;  ///< 0: the model has none
  double machine = 0;                ///< operations per second of the cores that the run can use
  int cores = 0;
};

/// The metrics of a finished run.
struct TrainOutcome {
  FitReport fit;
  Score score;
  std::string weights_hash;
  StepUse measured;   ///< mean over the steps of full mini-batches
  StepUse simulated;  ///< the program with the measured costs, a core per rank
  int cores = 0;      ///< that the ranks share; 0: one each, or ranks on several machines
  std::optional<StepUse> on_cores = {};  ///< the same with those, where the passes' times allow it
  std::vector<std::size_t> peak_counted, peak_predicted;  ///< stash bytes per rank
  /// Optimizer state per rank: the largest of its data-parallel replicas.
  std::vector<std::size_t> optimizer_counted, optimizer_predicted;
  std::vector<std::size_t> sums_counted, sums_predicted;  ///< bytes of partial sums per rank
  /// Of memory shared with other processes, per rank, the largest of its replicas: for
  /// activations and gradients, and for sums and agreements. Zeros, or empty, if none is shared.
  std::vector<std::size_t> shared_counted, shared_predicted, shared_by_collectives;
  std::int64_t updates = 0;
  SavedCheckpoints checkpoints;
  int processes = 0;  ///< that share the ranks; 0: one process
  int places = 1;     ///< ranks of each process
  ProductUse products;
  std::optional<TextOutcome> text = {};
};

/// Its last line, if it was stopped early.
void print_early_stop(std::ostream& stream, const TrainOutcome& outcome);

void print_outcome(std::ostream& stream, const TrainOutcome& outcome);

/// The settings of a run, for JSON.
[[nodiscard]] nlohmann::ordered_json settings_of(const TrainJob& job, bool in_processes);

/// Sizes of the units of a pass with the full mini-batch.
[[nodiscard]] std::vector<UnitSize> unit_sizes(const TrainJob& job);

/// Checks everything that a run needs, and prints what it would do and the memory that it would
/// take. Writes no file. Makes the whole model in this process. Throws as the run.
void dry_run(std::ostream& stream, const TrainJob& job);

/// For a run that was resumed after its last step.
void print_finished(std::ostream& stream, const TrainOutcome& outcome, std::int64_t step);
std::string finished_json(const TrainJob& job, const TrainOutcome& outcome, std::int64_t step);

/// The files that the run has written.
void print_files(std::ostream& stream, const TrainFlags& flags);

std::string outcome_json(const TrainJob& job, const TrainOutcome& outcome);

/// The part of a run in a process or thread: one rank of the job's grid if there is an endpoint,
/// else all.
struct TrainPlace {
  Endpoint* endpoint = nullptr;
  ProcessGroup* group = nullptr;
  bool is_thread = false;  ///< one of several ranks in this process
  int processes = 0;       ///< that share the ranks; 0: this one has all
  /// A file that rank 0 makes when all ranks are done, before it prints the result. Empty: none.
  std::string result_mark = {};
};

/// Whether SIGTERM and SIGINT end the run after the current step instead of at once.
[[nodiscard]] bool stops_when_asked(const TrainJob& job);

/// Trains and evaluates. Rank 0 prints progress and results, and writes the files that the flags
/// name, which it opens first.
TrainOutcome run_training(const TrainJob& job, const TrainPlace& place = {});

/// Measures the actions of a run; rank 0 gathers those of all processes after the last step.
/// With all ranks in this process, every full mini-batch counts. Else each process keeps its rows
/// of the last full mini-batches, at most 32 of them and 4 MiB.
/// Thread-safety: externally synchronised.
class RunMeasurement {
 public:
  /// All must outlive this. `rank` is that of this process, if there are several. Of data-parallel
  /// replicas the first is drawn and reported.
  RunMeasurement(const TrainJob& job, const Trainer& trainer, ProcessGroup& group, Rank rank);

  void after_step(const StepReport& report);

  /// The idle share of the last step: over all ranks, or the process's own, from its first action
  /// to its last.
  [[nodiscard]] double bubble() const;

  /// The whole: every rank's rows of the last step on one clock, and the costs.
  struct Whole {
    Timeline last;
    Cost cost;
  };

  /// Fills the outcome's measured and simulated use, its stash peaks, the optimizer's bytes and
  /// those of shared memory, in all processes alike. Every process calls this, once. Rows of ranks
  /// on one machine lie on one clock; those of other machines begin with the step. `endpoint`:
  /// null, or the process's own.
  Whole gather(TrainOutcome& outcome, const Endpoint* endpoint);

 private:
  struct Step {
    double started = 0;  ///< seconds on this machine's steady clock
    double seconds = 0;  ///< of the step, update included
    std::vector<Interval> row;
  };

  [[nodiscard]] bool is_alone() const { return group_.size() == 1; }
  [[nodiscard]] double outside_passes(double seconds) const;
  void keep_row(double seconds);
  [[nodiscard]] std::string pack() const;
  static std::vector<Step> unpack(const std::string& text, std::string& machine);
  void add_rows_of_all();
  void add_memory(Cost& cost) const;
  [[nodiscard]] std::vector<std::size_t> most_of_copies(std::vector<double> mine) const;
  void add_optimizer(TrainOutcome& outcome) const;
  void add_shared(TrainOutcome& outcome, const Endpoint* endpoint) const;
  [[nodiscard]] std::vector<std::size_t> sums_predicted(const Cost& cost) const;

  const TrainJob& job_;
  const Trainer& trainer_;
  ProcessGroup& group_;
  const Rank rank_;  ///< in the copy
  const bool of_first_copy_;
  Profile profile_;
  Timeline last_;
  std::size_t most_ = 0;
  std::deque<Step> steps_;
  std::int64_t seen_ = 0;
  std::vector<std::size_t> peaks_, sum_peaks_;
};

}  // namespace millrace::cli
