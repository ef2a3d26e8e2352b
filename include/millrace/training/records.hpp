// Records of steps and what is made of them: totals, measured costs, gradient inspections and the
// page of a run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/stages/stage.hpp"
#include "millrace/training/reports.hpp"

namespace millrace {

/// Where the time of one rank went, in seconds, from the end of one step to the end of the next.
struct RankTimes {
  double compute = 0;  ///< inside F, B, I, W and recompute
  /// Inside a pass of the pipeline or the update, and none of the others: for other ranks, or for a
  /// processor.
  double wait = 0;
  /// In sends, in receives from the moment at which the message had been sent, and in REDUCE_GRAD.
  /// Ranks of one process hand tensors over and need none.
  double transfer = 0;
  double data = 0;       ///< until the mini-batch was there
  double optimizer = 0;  ///< norm and update of the rank's own parameters
  double save = 0;       ///< for which steps waited for a checkpoint
  double other = 0;      ///< the caller's callbacks, the agreement of processes

  [[nodiscard]] double total() const {
    return compute + wait + transfer + data + optimizer + save + other;
  }

  RankTimes& operator+=(const RankTimes& more);
};

/// Idle time of one rank inside the passes of a step, by cause, in seconds. Warm-up, drain,
/// imbalance and dependency are those of the program simulated with the step's own mean times, a
/// processor per rank and free messages; where that is idle for longer than the rank was, they are
/// that much shorter.
struct Bubble {
  double warm_up = 0;     ///< before the rank's first op
  double drain = 0;       ///< after its last
  double imbalance = 0;   ///< in gaps: what vanishes with equal stages
  double dependency = 0;  ///< in gaps: the rest
  double transfer = 0;    ///< messages, as in RankTimes
  /// What was measured beyond that: ranks that share a processor, actions of one kind that do not
  /// take the same time, handing work over.
  double delay = 0;

  [[nodiscard]] double total() const {
    return warm_up + drain + imbalance + dependency + transfer + delay;
  }

  Bubble& operator+=(const Bubble& more);
};

/// One rank's part of a step.
struct RankRecord {
  Rank rank;     ///< of the program
  int copy = 0;  ///< of the pipeline, where there are several
  RankTimes times;
  Bubble bubble;
};

/// One step. Thread-safety: a value.
struct StepRecord {
  std::int64_t step = 0;  ///< mini-batches run in this training, this one included
  StepReport report;
  /// From the end of the step before (of the first: from the beginning) to the end of this one, in
  /// the process that has the record. `RankTimes::total()` of its ranks is this.
  double seconds = 0;
  double ended = 0;           ///< in seconds since 1970, by what writes a log; 0: not known
  std::int64_t restarts = 0;  ///< of all ranks, since the step before that counts
  double downtime = 0;        ///< seconds without a step that counts, since then
  /// From the first action's start to the last one's end over all ranks, added up over the passes
  /// of the step; of several copies, that of the slowest. A rank's `Bubble::total()` is its copy's
  /// makespan less its time in compute.
  double makespan = 0;
  std::vector<RankRecord> ranks;  ///< by copy, then rank
  /// Of the step's last pass, in the first copy, on the clock of its first rank's machine; rows of
  /// other machines begin with the pass.
  Timeline timeline;
  bool validates = false;  ///< whether the fit validates: the text has fields for it
  /// Of the last validation; NaN: there was none.
  double validation_loss = std::numeric_limits<double>::quiet_NaN();
  double validation_accuracy = std::numeric_limits<double>::quiet_NaN();

  [[nodiscard]] double samples_per_second() const {
    return seconds > 0 ? static_cast<double>(report.samples) / seconds : 0;
  }

  /// Idle share of the passes, over all ranks.
  [[nodiscard]] double bubble() const;
};

/// The record as text. Numbers are the shortest that are read as the same double again; what is not
/// finite is null in JSON and empty in CSV. Both have the same fields in the same order: in CSV
/// those of a rank are columns of their own, "rank0.compute" ("copy1.rank0.compute").
/// Cost: O(ranks).
[[nodiscard]] std::string json_line(const StepRecord& record);    ///< one object, without newline
[[nodiscard]] std::string csv_columns(const StepRecord& record);  ///< the first line of a CSV file
[[nodiscard]] std::string csv_line(const StepRecord& record);

/// What json_line or, with the first line of its file as `columns`, csv_line wrote: all but the
/// timeline; the loss is a sum of weight 1. Throws DataError for anything else. Cost: O(ranks).
[[nodiscard]] StepRecord read_record(std::string_view line, std::string_view columns = {});

/// Sums since the run began. Thread-safety: externally synchronised.
class StepTotals {
 public:
  /// Cost: O(ranks).
  void add(const StepRecord& record);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] double makespan() const { return makespan_; }
  [[nodiscard]] std::int64_t restarts() const { return restarts_; }
  [[nodiscard]] double downtime() const { return downtime_; }
  /// The share of the time in which steps ran that count.
  [[nodiscard]] double goodput() const {
    return seconds_ > 0 ? seconds_ / (seconds_ + downtime_) : 0;
  }
  /// By copy, then rank.
  [[nodiscard]] const std::vector<RankRecord>& ranks() const { return ranks_; }

 private:
  std::int64_t steps_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t samples_ = 0;
  double seconds_ = 0;
  double makespan_ = 0;
  std::int64_t restarts_ = 0;
  double downtime_ = 0;
  std::vector<RankRecord> ranks_;
};

/// What ranks did with their time when they did not compute, by cause.
struct TimeShare {
  std::string cause;  ///< "warm-up and drain", "imbalance", "data", ...
  double share = 0;   ///< of the time of all ranks
  std::string cure;   ///< a sentence: what makes it less
};

/// Compute first, then the causes for which ranks did not, the largest first. The shares add up to
/// 1. The idle time of the passes is told by the causes of the bubble; "wait" is what of it lies
/// outside of them. No time: an empty list. Cost: O(ranks).
[[nodiscard]] std::vector<TimeShare> time_shares(const StepTotals& totals);

/// "bottleneck: imbalance, 31.2 % of the ranks' time; ..." or that they compute.
[[nodiscard]] std::string bottleneck(const StepTotals& totals);

/// The Prometheus text format (version 0.0.4): counters of the run, gauges of its last step,
/// seconds by rank and cause.
[[nodiscard]] std::string prometheus_text(const StepTotals& totals, const StepRecord& last);

/// The gradients of one layer: of all parameters whose names are the same up to the first number
/// ("layers.0" of "layers.0.weight"); another parameter is a layer of its own.
struct LayerGradients {
  std::string layer;
  std::int64_t elements = 0;
  double norm = 0;              ///< Euclidean, of those that are finite
  double largest = 0;           ///< magnitude, of those that are finite
  std::int64_t zeros = 0;       ///< elements that are exactly 0
  std::int64_t not_finite = 0;  ///< infinite or NaN
  bool frozen = false;          ///< every parameter is, so that nothing moves along it
};

/// Layers in the order of their numbers.
struct GradientInspection {
  std::int64_t step = 0;  ///< the mini-batch, counted from 1
  std::vector<LayerGradients> layers;
};

/// Of these parameters, in the order of their layers' numbers. In Trainer::before_update this looks
/// at any step. Cost: O(elements).
[[nodiscard]] std::vector<LayerGradients> inspect_gradients(
    std::span<const Parameter* const> parameters);

/// A table, and under it a sentence for every layer that learns nothing or has what is not finite.
[[nodiscard]] std::string to_string(const GradientInspection& inspection);

/// Busy seconds of one rank in one measured or simulated step.
struct RankUse {
  double busy = 0;  ///< inside F, B, I, W and recompute

  /// Idle share of a step that took `makespan`.
  [[nodiscard]] double bubble(double makespan) const {
    return makespan > 0 ? std::max(0.0, 1 - busy / makespan) : 0;
  }
};

/// How the ranks used one step.
struct StepUse {
  double makespan = 0;  ///< first start to last end of a compute action, over all ranks
  std::vector<RankUse> ranks;

  /// Idle share over all ranks.
  [[nodiscard]] double bubble() const;
};

/// Reads a timeline of `program`. Rows of ranks that ran elsewhere are empty and count as idle.
[[nodiscard]] StepUse step_use(const Program& program, const Timeline& timeline);

/// Averages the durations of a program's actions over steps.
/// Thread-safety: externally synchronised.
class Profile {
 public:
  /// `program` is the one that ran (Executor::program), and must outlive the profile.
  explicit Profile(const Program& program);
  explicit Profile(const Program&& program) = delete;

  /// Adds one step; `after_passes`: its seconds outside the timeline, where they are known.
  void add(const Timeline& timeline, double after_passes = 0);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// Mean use over the steps: mean makespan, mean busy time per rank.
  [[nodiscard]] StepUse use() const;

  /// Mean seconds of each op of each stage and slice over micro-batches and steps, and of a step
  /// outside its passes, with the stash
  /// bytes of `stages` for units of that size, as they are with the program's recomputes. A full
  /// backward that was never split is shared out evenly between I and W. Throws InvalidArgument
  /// before the first step.
  [[nodiscard]] Cost cost(std::span<const HostedStage> stages, const UnitSize& size) const;

 private:
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;

    [[nodiscard]] double value() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  };

  [[nodiscard]] std::vector<double> means(Op op) const;

  const Program* program_;
  std::vector<std::vector<Mean>> of_op_;  // [op][stage * slices + slice]
  std::vector<double> busy_;              // sums per rank
  double makespan_ = 0;
  double after_passes_ = 0;
  std::int64_t steps_ = 0;
};

/// The largest number of bytes each rank will stash in a step, from the program's order and
/// `StageBody::stash_bytes` alone, for units of these sizes (see unit_sizes). What StepResult
/// counts, exactly. Cost: O(actions). Throws InvalidArgument unless there is a size for every unit.
[[nodiscard]] std::vector<std::size_t> predict_stash_peaks(const Program& program,
                                                           std::span<const HostedStage> stages,
                                                           std::span<const UnitSize> sizes);

/// The bytes that a process of each rank has of the optimizer's arrays and of master values: so
/// many f32 arrays (Optimizer::slots) of its trained parameters, and one more of those that are
/// rounded. Spread over several copies (StepOptions::shard_optimizer) the largest share. What
/// TrainingState::optimizer_bytes counts, exactly; 0 for ranks that host none of `stages`. Cost:
/// O(parameters x copies).
[[nodiscard]] std::vector<std::size_t> predict_optimizer_bytes(const Shape& shape,
                                                               std::span<const HostedStage> stages,
                                                               int slots,
                                                               int copies = 1);

/// Consecutive steps as one point of the curves. A mean over what was finite, NaN where nothing
/// was.
struct HistoryPoint {
  std::int64_t step = 0;  ///< the last of them
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double samples_per_second = 0;  ///< samples over time
  double bubble = 0;
  double loss_scale = 0;
  double validation_loss = 0;  ///< of the last validation
  double validation_accuracy = 0;
  std::int64_t skipped = 0;  ///< how many of them
  std::int64_t restarts = 0;
};

/// What the curves are drawn of, in bounded memory: when there are `most` points, neighbours become
/// one. Thread-safety: externally synchronised.
class RunHistory {
 public:
  /// Throws InvalidArgument unless `most` is even and at least 2.
  explicit RunHistory(std::size_t most = 2000);

  /// Cost: amortised O(1).
  void add(const StepRecord& record);

  /// In the order of the steps; the last one may have fewer of them. Cost: O(points).
  [[nodiscard]] std::vector<HistoryPoint> points() const;
  /// How many steps one point has.
  [[nodiscard]] std::int64_t steps_per_point() const { return width_; }

 private:
  /// Sums, so that neighbours can be joined.
  struct Sums {
    std::int64_t steps = 0, last_step = 0, skipped = 0, restarts = 0;
    std::int64_t losses = 0, norms = 0;                   // finite ones
    double validation_loss = 0, validation_accuracy = 0;  // the last
    double loss = 0, norm = 0, rate = 0, scale = 0, bubble = 0, samples = 0, seconds = 0;
  };

  static void join(Sums& sums, const Sums& more);
  [[nodiscard]] static HistoryPoint point_of(const Sums& sums);

  std::size_t most_;
  std::int64_t width_ = 1;
  std::vector<Sums> sums_;
};

/// What a page shows. Must outlive the call.
struct RunPage {
  std::string title;     ///< of the run, as text
  std::string subtitle;  ///< what it trained, as text
  const RunHistory& history;
  const StepTotals& totals;
  const Program& program;  ///< as executed
  const Timeline& last;    ///< of the program: the last step's
};

/// HTML without scripts or external resources. Names the bottleneck by its cause. Timelines of more
/// than 20,000 actions are left out, and the page says so. Cost: O(points + ranks + actions).
[[nodiscard]] std::string draw_page(const RunPage& page);

}  // namespace millrace
