// Relaxation: the dependencies of a job plus the chains that may be assumed without loss (first in,
// first out; memory), their longest paths, and the one-rank bound. See lower_bound.hpp for the
// proof; the exact solver evaluates the same relaxation at every state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/search/job.hpp"

namespace millrace::plan {

/// One action seen by one rank: earliest start, time, least time from its end to the objective.
struct HeadTail {
  double head = 0;
  double ticks = 0;
  double tail = 0;
};

/// Value of the best preemptive schedule of `jobs` on one rank: max of completion + tail.
/// `jobs` is reordered. Cost: O(n log n).
[[nodiscard]] double one_rank_bound(std::vector<HeadTail>& jobs);

/// Thread-safety: immutable once built, share freely.
class Relaxation {
 public:
  /// `job` holds each class for every micro-batch of its replica (as `everything` makes it) and
  /// must outlive the relaxation.
  Relaxation(const Job& job, Objective objective, double memory_limit);

  /// Whether every single forward fits under the limit.
  [[nodiscard]] bool fits() const { return fits_; }
  /// Nodes so that producers and chain predecessors come first.
  [[nodiscard]] std::span<const JobNode> topological() const { return topological_; }
  /// Chain predecessors: what must end before the node starts besides its producers.
  [[nodiscard]] std::span<const JobNode> chained(JobNode node) const {
    return {chained_.data() + chain_start_[node], chained_.data() + chain_start_[node + 1]};
  }
  [[nodiscard]] double tail(JobNode node) const { return tail_[node]; }

  /// The bound of 5 in lower_bound.hpp, in ticks.
  [[nodiscard]] double bound() const;

 private:
  void chain();
  void sort_topologically();
  void find_tails();

  const Job& job_;
  Objective objective_;
  double limit_;
  bool fits_ = true;
  std::vector<std::uint32_t> chain_start_;
  std::vector<JobNode> chained_;
  std::vector<JobNode> topological_;
  std::vector<double> tail_;
};

}  // namespace millrace::plan
