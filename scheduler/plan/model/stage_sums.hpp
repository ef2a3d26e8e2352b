// Gradient all-reduces: which a program has, and how they follow one another on the
// link of their rank. Under the clock, the paths that it took, the search and the pictures.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/model/reductions.hpp"

namespace millrace::plan {

/// The sum of one stage's gradients, of one of its replicas, in ticks of the cost.
struct PlannedSum {
  Replica replica;
  Stage stage;
  Rank rank;
  Node last = 0;       ///< its last B or W
  Node before = 0;     ///< what its rank runs before it gives the sum to others
  Node reduction = 0;  ///< its REDUCE_GRAD
  double transfer = 0, delay = 0;
};

/// A sum that a REDUCE_GRAD waits for, and its way to there: none from the same rank.
struct AwaitedSum {
  std::size_t sum = 0;  ///< in PlannedSums::all
  double transfer = 0, delay = 0;

  [[nodiscard]] double way() const { return transfer + delay; }
};

/// The way of a copy's sum to a rank with which it is added; its `sum` is not set.
[[nodiscard]] AwaitedSum way_of_sum(const Shape& shape,
                                    const Cost& cost,
                                    const Copy& copy,
                                    Rank to);

/// Those of a program with a cost: of every replica of a stage that has a REDUCE_GRAD behind its
/// last B or W, where Cost::adds_gradients; none elsewhere. Those of one copy of the pipeline take
/// no time themselves: only the ways between replicas do.
/// Thread-safety: immutable, share freely.
class PlannedSums {
 public:
  /// Requires a cost that fits the graph's shape. Cost: O(actions), O(1) without sums.
  PlannedSums(const Graph& graph, const Cost& cost);

  [[nodiscard]] bool none() const { return sums_.empty(); }
  /// By rank, and on each in the order in which they can start.
  [[nodiscard]] const std::vector<PlannedSum>& all() const { return sums_; }
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  /// Its place in all(); kNone where the replica of the stage has none.
  [[nodiscard]] std::size_t place(Replica replica, Stage stage) const {
    return sums_.empty() ? kNone : place_[replica.index() * stages_ + stage.index()];
  }
  /// What a REDUCE_GRAD waits for, its own sum first, then those of the stage's other replicas and
  /// of stages tied to it, on other ranks. Empty where it has none.
  [[nodiscard]] const std::vector<AwaitedSum>& awaited_by(const Action& reduction) const;

  /// When a sum that was there at `sum_end` is on the rank that waits for it, whose own it may be.
  /// `end_of` gives the end of a node.
  template <class EndOf>
  [[nodiscard]] double arrival(
      const AwaitedSum& awaited, Rank on, double sum_end, double scale, EndOf&& end_of) const {
    const PlannedSum& sum = sums_[awaited.sum];
    if (sum.rank == on) return sum_end;
    return std::max(sum_end, end_of(sum.before)) + awaited.way() * scale;
  }

 private:
  void find(const Graph& graph, const Cost& cost);
  void join(const Graph& graph, const Cost& cost);

  std::vector<PlannedSum> sums_;
  std::size_t stages_ = 0;
  std::vector<std::size_t> place_;                // by replica and stage
  std::vector<std::vector<AwaitedSum>> awaited_;  // by place
};

/// The least ticks by which gradient all-reduces make any schedule of the shape longer:
/// the pass that ends last is some stage's last B or W, and behind it its rank meets the replicas
/// of all its stages. What those get then is none of its own span. 0 where nothing is added.
[[nodiscard]] double least_sum(const Shape& shape, const Cost& cost, Objective objective);

/// The link of one rank to the other data-parallel replicas.
class SumLink {
 public:
  /// Start and end of the next sum, which could start at `ready`.
  Interval take(double ready, double transfer, double delay) {
    const double start = std::max(ready, free_);
    free_ = start + transfer;
    return {start, free_ + delay};
  }

 private:
  double free_ = -std::numeric_limits<double>::infinity();
};

}  // namespace millrace::plan
