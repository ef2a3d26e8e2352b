// Sums over the records of a run: what it did so far, where its time went, and what it lost most
// to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/training/step_record.hpp"

namespace millrace {

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
  /// By copy, then rank.
  [[nodiscard]] const std::vector<RankRecord>& ranks() const { return ranks_; }

 private:
  std::int64_t steps_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t samples_ = 0;
  double seconds_ = 0;
  double makespan_ = 0;
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

}  // namespace millrace
