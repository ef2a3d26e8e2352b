// Where the time of one pass of the pipeline went, read from its timeline: pure arithmetic.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/training/records.hpp"

namespace millrace {

/// Of every rank of the program, in seconds.
struct PassUse {
  double makespan = 0;           ///< first start to last end of compute, over all ranks
  std::vector<double> compute;   ///< overlapping actions count once
  std::vector<double> transfer;  ///< see RankTimes
  std::vector<Bubble> bubble;    ///< adds up to makespan - compute
};

/// `timeline` is a measured one of the graph's program, in seconds, all rows there. Cost: two
/// simulations, O(actions).
[[nodiscard]] PassUse pass_use(const Graph& graph, const Timeline& timeline);

}  // namespace millrace
