// Sums over the copies of a pipeline: which a program has, and how they follow one another on the
// link of their rank. Under the clock, the paths that it took, the search and the pictures.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::plan {

/// The sum of one stage's gradients, in ticks of the cost.
struct PlannedSum {
  Stage stage;
  Rank rank;
  Node last = 0;       ///< the stage's last B or W
  Node reduction = 0;  ///< its REDUCE_GRAD
  double transfer = 0, delay = 0;
};

/// Those of a program with a cost: of every stage that has a REDUCE_GRAD behind its last B or W,
/// where there are several copies of the pipeline; none elsewhere.
/// Thread-safety: immutable, share freely.
class PlannedSums {
 public:
  /// Requires a cost that fits the graph's shape. Cost: O(actions), O(1) for one copy.
  PlannedSums(const Graph& graph, const Cost& cost);

  [[nodiscard]] bool none() const { return sums_.empty(); }
  /// By rank, and on each in the order in which they can start.
  [[nodiscard]] const std::vector<PlannedSum>& all() const { return sums_; }
  /// Null where the stage has none.
  [[nodiscard]] const PlannedSum* of(Stage stage) const;
  /// The stages whose sums the REDUCE_GRAD of `stage` waits for: its own, and those of stages on
  /// other ranks that are tied to it.
  [[nodiscard]] std::vector<Stage> awaited_by(Stage stage) const;

 private:
  std::vector<PlannedSum> sums_;
  std::vector<std::size_t> place_;  // by stage: in sums_; beyond its end: none
  std::vector<std::vector<Stage>> together_;
};

/// The least ticks by which sums over copies of the pipeline make any schedule of the shape longer:
/// the pass that ends last is some stage's last B or W. 0 for one copy.
[[nodiscard]] double least_sum(const Shape& shape, const Cost& cost);

/// The link of one rank to the other copies of the pipeline.
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
