// Reports: figures of 1F1B and of small programs, exact in integers.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using testing_plan::one_f_one_b;
using testing_plan::program;
using testing_plan::straight;

Report report_of(const Program& program, const Cost& cost) {
  const Graph graph(program);
  return report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
}

TEST(Report, OneFOneBHasTheClosedForms) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 9; ++m) {
      const Program schedule = one_f_one_b(p, m);

      const Report all = report_of(schedule, Cost::of_full_stage(schedule.shape, 2, 3, 1));

      EXPECT_EQ(all.makespan, 6 * (m + p - 1));
      EXPECT_EQ(all.bubble_makespan, 6 * (p - 1));
      EXPECT_EQ(all.bubble_span, 6 * (p - 1));
      EXPECT_EQ(all.critical_path, all.makespan);
      for (int r = 0; r < p; ++r) {
        const RankReport& rank = all.ranks[static_cast<std::size_t>(r)];
        EXPECT_EQ(rank.busy, 6 * m);
        EXPECT_EQ(rank.idle.warm_up, 2 * r);
        EXPECT_EQ(rank.idle.drain, 4 * r);
        EXPECT_EQ(rank.idle.total(), all.makespan - rank.busy);
        EXPECT_EQ(rank.peak_activation, std::min(p - r, m));
        EXPECT_EQ(rank.peak_bytes, std::min(p - r, m));
      }
    }
}

TEST(Report, Step_IsMakespanAndOptimizer) {
  const Program two = one_f_one_b(2, 2);
  Cost cost = Cost::unit(two.shape);
  EXPECT_EQ(report_of(two, cost).step, 9);

  cost.after_passes = 30;
  cost.ticks_per_unit = 10;

  EXPECT_EQ(report_of(two, cost).makespan, 0.9);
  EXPECT_EQ(report_of(two, cost).step, 3.9);
}

TEST(Report, IdleCausesAreTransferImbalanceAndDependency) {
  // Rank 0: F0, then B0 after the round trip. With stage 1 three times as slow and latency 5:
  // gap = 3 + 6 + 2 * 5; free links leave 9, equal stages (mean 2 and 4) leave 6.
  const Program two = one_f_one_b(2, 1);
  Cost cost = Cost::of_full_stage(two.shape, 1, 1, 1, 5);
  cost.forward = {1, 3};
  cost.backward_input = {1, 3};
  cost.backward_weight = {1, 3};

  const Idle idle = report_of(two, cost).ranks[0].idle;

  EXPECT_EQ(idle.transfer, 10);
  EXPECT_EQ(idle.imbalance, 3);
  EXPECT_EQ(idle.dependency, 6);
}

TEST(Report, IdleCausesSumToTheIdleTimeExactly) {
  for (int p = 1; p <= 5; ++p)
    for (int m = 1; m <= 6; ++m)
      for (const bool messages : {false, true}) {
        const Program compute = split_backward(one_f_one_b(p, m));
        const Program schedule = messages ? insert_messages(compute) : compute;
        Cost cost = Cost::of_full_stage(schedule.shape, 3, 2, 4, 1);
        cost.forward[0] = 7;

        const Report all = report_of(schedule, cost);

        for (const RankReport& rank : all.ranks)
          EXPECT_DOUBLE_EQ(rank.busy + rank.idle.total(), all.makespan);
      }
}

TEST(Report, AtomicPair_CountsTimeOnceMemoryTogether) {
  const Program one = program(straight(1, 2), {"0F0 0B0+ 0F1 0B1"});
  Cost cost = Cost::unit(one.shape);

  EXPECT_EQ(report_of(one, cost).ranks[0].peak_activation, 1);
  cost.pair.ticks.fill(2);
  const Report atomic = report_of(one, cost);

  EXPECT_EQ(atomic.ranks[0].busy, 1 + 2 + 2);
  EXPECT_EQ(atomic.ranks[0].peak_activation, 2);
}

TEST(Report, TransientPeakInsideTheInputHalfCounts) {
  const Program one = program(straight(1, 1), {"0F0 0I0 0W0"});
  Cost cost = Cost::unit(one.shape);
  cost.memory_forward = {10};
  cost.memory_input_peak = {4};
  cost.memory_input = {1};
  cost.memory_weight = {-11};

  EXPECT_EQ(report_of(one, cost).ranks[0].peak_bytes, 14);
}

TEST(Report, RecomputeHoldsOnlyTheStageInputUntilThen) {
  const Program three = insert_recompute(program(straight(1, 3), {"0F0 0F1 0F2 0B0 0B1 0B2"}));
  Cost cost = Cost::unit(three.shape);
  cost.memory_forward = {10};
  cost.memory_boundary = {2};
  cost.memory_weight = {-10};

  const Report all = report_of(three, cost);

  EXPECT_EQ(all.ranks[0].peak_bytes, 3 * 2 + 8);
  EXPECT_EQ(all.ranks[0].peak_activation, 1);
}

TEST(MemoryOverTime, StepsAtStartsAndEnds) {
  const Program one = program(straight(1, 2), {"0F0 0F1 0B0 0B1"});
  const Graph graph(one);
  const Cost cost = Cost::unit(one.shape);

  const auto memory = memory_over_time(graph, cost, std::get<Timeline>(simulate(graph, cost)));

  using Step = MemoryStep;
  EXPECT_THAT(memory[0], ElementsAre(Step{0, 1}, Step{1, 2}, Step{4, 1}, Step{6, 0}));
}

TEST(CriticalPath, FollowsMessagesBetweenRanks) {
  const Program two = one_f_one_b(2, 1);
  const Graph graph(two);
  const Cost cost = Cost::of_full_stage(two.shape, 1, 1, 1, 3);

  const auto path = critical_path(graph, cost, std::get<Timeline>(simulate(graph, cost)));

  // 0F0, 1F0, 1B0, 0B0: nodes 0, 2, 3, 1.
  EXPECT_THAT(path, ElementsAre(0, 2, 3, 1));
}

TEST(CriticalPath, BusyLink_IsFollowedToItsHead) {
  // Messages leave at 1, 4, 7 and 10 and take 3 each: 1F3 waits for 0F0 and the whole queue.
  const Program forwards = program(straight(2, 4), {"0F0 0F1 0F2 0F3", "1F0 1F1 1F2 1F3"});
  const Graph graph(forwards);
  Cost cost = Cost::unit(forwards.shape);
  cost.bytes_per_tick = 1;
  cost.message_bytes = 3;
  cost.contention = true;
  const auto timeline = std::get<Timeline>(simulate(graph, cost));

  EXPECT_EQ(timeline.ranks[1][3].start, 13);
  EXPECT_THAT(critical_path(graph, cost, timeline), ElementsAre(0, 7));

  cost.contention = false;
  EXPECT_THAT(critical_path(graph, cost, std::get<Timeline>(simulate(graph, cost))),
              ElementsAre(0, 4, 5, 6, 7));
}

TEST(CriticalPath, HasNoUnexplainedTimeWithContention) {
  constexpr double transfer = 3, latency = 2;
  for (const char* name : {"1f1b", "zb-h1", "interleaved", "gpipe", "v-half", "dualpipe"}) {
    ScheduleOptions options;
    options.ranks = 4;
    options.micro_batches = 8;
    const Program schedule = insert_reductions(generate(name, options));
    const Graph graph(schedule);
    Cost cost = Cost::of_full_stage(schedule.shape, 1, 1, 1);
    cost.latency = latency;
    cost.bytes_per_tick = 1;
    cost.message_bytes = transfer;
    cost.contention = true;
    const auto timeline = std::get<Timeline>(simulate(graph, cost));
    const auto at = [&](Node node) {
      return timeline.ranks[graph.rank(node).index()][graph.position(node)];
    };

    const auto path = critical_path(graph, cost, timeline);

    EXPECT_EQ(at(path.front()).start, 0) << name;
    for (std::size_t i = 1; i < path.size(); ++i) {
      const double gap = at(path[i]).start - at(path[i - 1]).end;
      if (graph.rank(path[i]) == graph.rank(path[i - 1])) {
        EXPECT_EQ(gap, 0) << name;
        continue;
      }
      // Some whole messages, then the way; a reduction sends none.
      const double messages = (gap - latency) / transfer;
      EXPECT_EQ(messages, std::round(messages)) << name;
      EXPECT_GE(messages, has_unit(graph.action(path[i]).op) ? 1 : 0) << name;
    }
  }
}

}  // namespace
}  // namespace millrace
