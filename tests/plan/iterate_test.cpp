// Steps in a row and jittered runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using testing_plan::one_f_one_b;
using testing_plan::program;
using testing_plan::straight;

TEST(Iterations, WithABarrierEveryStepCostsTheMakespan) {
  const Program schedule = one_f_one_b(4, 8);

  const Iterations run =
      simulate_iterations(Graph(schedule), Cost::unit(schedule.shape), 3, Barrier::Yes);

  EXPECT_THAT(run.ends, ElementsAre(33, 66, 99));
  EXPECT_EQ(run.per_step, 33);
}

TEST(Iterations, WithoutABarrierZeroBubbleH2ReachesItsSpan) {
  ScheduleOptions options;
  const Program schedule = generate("zb-h2", options);
  const Cost cost = Cost::unit(schedule.shape);

  EXPECT_EQ(simulate_iterations(Graph(schedule), cost, 4, Barrier::No).per_step, 24);
  EXPECT_EQ(simulate_iterations(Graph(schedule), cost, 4, Barrier::Yes).per_step, 27);
}

TEST(Jitter, DependsOnSeed_BoundedByAmount) {
  const Program schedule = one_f_one_b(3, 6);
  const Graph graph(schedule);
  const Cost cost = Cost::unit(schedule.shape);

  const Spread one = simulate_jitter(graph, cost, {0.2, 40, 7});
  const Spread again = simulate_jitter(graph, cost, {0.2, 40, 7});
  const Spread other = simulate_jitter(graph, cost, {0.2, 40, 8});

  EXPECT_EQ(one.mean, again.mean);
  EXPECT_NE(one.mean, other.mean);
  EXPECT_GE(one.least, 24 * 0.8);
  EXPECT_LE(one.most, 24 * 1.2);
  EXPECT_LE(one.p05, one.median);
  EXPECT_LE(one.median, one.p95);
  EXPECT_LT(one.least, one.most);
}

TEST(Jitter, OfNothingIsTheSimulation) {
  const Program schedule = one_f_one_b(3, 6);

  const Spread none = simulate_jitter(Graph(schedule), Cost::unit(schedule.shape), {0, 3, 1});

  EXPECT_EQ(none.least, 24);
  EXPECT_EQ(none.most, 24);
}

TEST(Iterations, RefuseAProgramThatDeadlocks) {
  const Program two = program(straight(2, 2), {"0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"});

  EXPECT_THROW((void)simulate_iterations(Graph(two), Cost::unit(two.shape), 1, Barrier::No),
               InvalidArgument);
}

}  // namespace
}  // namespace millrace
