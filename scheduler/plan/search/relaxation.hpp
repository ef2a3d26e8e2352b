// Relaxation: the dependencies of a job plus the chains that may be assumed without loss (first in,
// first out; memory), their longest paths, and the one-rank bound. See lower_bound.hpp for the
// proof; the exact solver evaluates the same relaxation at every state.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/model/job.hpp"

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

/// What an objective counts from: a lane is a start and an end, and the objective is at least
/// any lane's length. The makespan has one lane, which every rank begins and ends; the span has a
/// lane per rank, from that rank's first op to its last.
class Lanes {
 public:
  Lanes(const Job& job, Objective objective)
      : count_(objective == Objective::Span ? static_cast<std::size_t>(job.ranks()) : 1) {}

  [[nodiscard]] std::size_t count() const { return count_; }
  /// Least time between the lane's ends and those of a rank's work: 0, or minus infinity where
  /// nothing is known.
  [[nodiscard]] double edge(std::size_t lane, std::size_t rank) const {
    const bool on = count_ == 1 || lane == rank;
    return on ? 0 : -std::numeric_limits<double>::infinity();
  }

 private:
  std::size_t count_;
};

/// Thread-safety: immutable once built, share freely.
class Relaxation {
 public:
  /// `job` holds each class for every micro-batch of its replica (as `everything` makes it) and
  /// must outlive the relaxation.
  Relaxation(const Job& job, Objective objective, double memory_limit);

  /// Whether every single forward fits under the limit.
  [[nodiscard]] bool fits() const { return fits_; }
  [[nodiscard]] const Lanes& lanes() const { return lanes_; }
  /// Nodes so that producers and chain predecessors come first.
  [[nodiscard]] std::span<const Node> topological() const { return topological_; }
  /// Chain predecessors: what must end before the node starts besides its producers.
  [[nodiscard]] std::span<const Node> chained(Node node) const {
    return {chained_.data() + chain_start_[node], chained_.data() + chain_start_[node + 1]};
  }
  /// By node: least time from the lane's start to the node's, minus infinity where none is known.
  [[nodiscard]] std::vector<double> heads(std::size_t lane) const;
  /// By node: least time from the node's end to the lane's.
  [[nodiscard]] std::vector<double> tails(std::size_t lane) const;

  /// The bound of 5 in lower_bound.hpp, in ticks.
  [[nodiscard]] double bound() const;

 private:
  void chain();
  void sort_topologically();
  [[nodiscard]] std::vector<std::size_t> telling_lanes() const;
  [[nodiscard]] double lane_bound(std::size_t lane) const;

  const Job& job_;
  Lanes lanes_;
  double limit_;
  bool fits_ = true;
  std::vector<std::uint32_t> chain_start_;
  std::vector<Node> chained_;
  std::vector<Node> topological_;
};

}  // namespace millrace::plan
