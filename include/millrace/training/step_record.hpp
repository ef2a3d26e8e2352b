// What one step did and where its time went, rank by rank: what logs, metrics and pages are made
// of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
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
  /// From the first action's start to the last one's end over all ranks, added up over the passes
  /// of the step; of several copies, that of the slowest. A rank's `Bubble::total()` is its copy's
  /// makespan less its time in compute.
  double makespan = 0;
  std::vector<RankRecord> ranks;  ///< by copy, then rank
  /// Of the step's last pass, in the first copy, on the clock of its first rank's machine; rows of
  /// other machines begin with the pass.
  Timeline timeline;

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

}  // namespace millrace
