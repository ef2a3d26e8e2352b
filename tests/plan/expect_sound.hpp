// What every find of a search must be, by the public checker and simulation.
#pragma once

#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/search.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/search_cases.hpp"

namespace millrace::test {

/// The program is right, within the limit and as fast as simulate says.
inline void expect_sound(const SearchOptions& options, const FoundSchedule& found) {
  const Cost cost = options.cost(found.program.shape);
  VerifyOptions checks;
  checks.cost = cost;
  if (options.memory_limit < std::numeric_limits<double>::infinity())
    checks.memory_limit = {options.memory_limit};
  EXPECT_THAT(verify(found.program, checks), ::testing::IsEmpty());
  EXPECT_DOUBLE_EQ(simulated(found.program, cost, Objective::Makespan), found.makespan);
  EXPECT_DOUBLE_EQ(simulated(found.program, cost, Objective::Span), found.span);
  EXPECT_DOUBLE_EQ(most_held(found.program, cost), found.peak_memory);
  EXPECT_EQ(recomputed_stages(found.program), found.recomputed);
  std::set<Action> again;
  for (const auto& list : found.program.ranks)
    for (const Action& action : list)
      if (action.op == Op::Recompute) again.insert(action);
  const auto wanted = [&](Action action) {
    action.op = Op::Recompute;
    return again.contains(action);
  };
  EXPECT_EQ(insert_recompute(compute_only(found.program), wanted), found.program);
}

}  // namespace millrace::test
