// Simulates a generated schedule and returns its report, failing the test when it cannot run.
#pragma once

#include <set>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::testing_plan {

/// Figures of a program with full-stage times F, I, W and a message latency.
inline Report figures(
    const Program& program, double forward, double input, double weight, double latency = 0) {
  const Graph graph(program);
  const Cost cost = Cost::of_full_stage(program.shape, forward, input, weight, latency);
  const auto result = simulate(graph, cost);
  if (!std::holds_alternative<Timeline>(result)) {
    ADD_FAILURE() << program.name << ": " << std::get<Deadlock>(result).message();
    return {};
  }
  return report(graph, cost, std::get<Timeline>(result));
}

inline double peak_of(const Report& figures) {
  double peak = 0;
  for (const RankReport& rank : figures.ranks) peak = std::max(peak, rank.peak_activation);
  return peak;
}

inline ScheduleOptions sized(int ranks, int micro_batches) {
  ScheduleOptions options;
  options.ranks = ranks;
  options.micro_batches = micro_batches;
  return options;
}

/// 4 ranks, and 8 micro-batches or, where the schedule needs more, 12.
inline ScheduleOptions fitting(const ScheduleEntry& entry) {
  return sized(4, entry.name == "stp" ? 12 : 8);
}

/// The micro-batch counts at which schedules change: 1, p-1, p, p+1, 2p-1, 2p, 3p, 8p.
inline std::set<int> telling_micro_batches(int p) {
  std::set<int> counts = {1, p - 1, p, p + 1, 2 * p - 1, 2 * p, 3 * p, 8 * p};
  counts.erase(0);
  return counts;
}

inline const std::vector<int> kRanks = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};

}  // namespace millrace::testing_plan
