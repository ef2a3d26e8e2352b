// Period: the least time from step to step at which an order can be repeated, every rank beginning
// its next step when it has ended this one. It is the maximum cycle ratio of the order with an edge
// from each rank's last op to its first. Shared by the report, which runs graphs, and by the
// search, which runs jobs: both only say how far each rank gets from given starts.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::plan {

/// What one run of an order says of a rank: when its last op ends, and the rank whose start a
/// longest path to that end begins with.
struct Reach {
  double end = 0;
  std::size_t origin = 0;
};

/// Length of a cycle of paths, each from the first op of one rank to the last op of the next.
struct CycleRatio {
  double ticks = 0;
  double wraps = 1;
  std::size_t rank = 0;  ///< one of the cycle

  [[nodiscard]] double value() const { return ticks / wraps; }
};

/// Finds the period: call `improve` with what a run from `starts()` reached until it returns false;
/// then `ratio` is the period, and from `starts()` no rank needs longer from start to end.
///
/// Method: the paths of a run close at least one cycle of ranks, so its ratio is a lower bound.
/// With the largest ratio so far as the period, ranks that end too late have to start later
/// (Bellman and Ford's steps on the ranks); either no rank does any more, which proves the ratio,
/// or after at most as many runs as ranks the latest steps close a cycle of a larger ratio.
/// Exact when the ticks are integers. Thread-safety: externally synchronised.
class Period {
 public:
  /// `whole`: every path from start to end is an integer number of ticks, so that starts at
  /// fractions leave no rounding.
  Period(std::vector<double> starts, bool whole) : starts_(std::move(starts)), whole_(whole) {}

  bool improve(const std::vector<Reach>& reach);

  [[nodiscard]] const std::vector<double>& starts() const { return starts_; }
  [[nodiscard]] const CycleRatio& ratio() const { return ratio_; }

 private:
  /// The path that a rank's end came from.
  struct Step {
    std::size_t origin = 0;
    double ticks = 0;
  };

  bool raise(const std::vector<Step>& steps);
  [[nodiscard]] static CycleRatio largest_cycle(const std::vector<Step>& steps);

  std::vector<double> starts_;
  bool whole_;
  std::vector<Step> step_;  // by rank: the path that last made it start later; itself: none
  bool fresh_ = true;       // step_ is to be cleared
  CycleRatio ratio_;
  double tolerance_ = 0;
};

/// The period of the order, in the cost's ticks. `timeline` is where it starts from: of a simulated
/// one whose longest rank is held up from its own first op to its last, nothing has to be run.
/// Infinite when the program cannot run to its end. Cost: O(actions) per run of the clock, mostly
/// none to three, at most ranks for every ratio met.
[[nodiscard]] CycleRatio order_span(const Graph& graph, const Cost& cost, const Timeline& timeline);

}  // namespace millrace::plan
