// The simulator against hand-computed timelines and the naive replay.
#include "millrace/scheduler/plan/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "support/naive_replay.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_plan::NaiveReplay;
using testing_plan::one_f_one_b;
using testing_plan::program;
using testing_plan::straight;

Timeline timeline(const Program& program, const Cost& cost) {
  return std::get<Timeline>(simulate(Graph(program), cost));
}

double makespan(const Program& program, const Cost& cost) {
  double last = 0;
  for (const auto& list : timeline(program, cost).ranks)
    for (const Interval& interval : list) last = std::max(last, interval.end);
  return last / cost.ticks_per_unit;
}

Interval at(double start, double end) {
  return {start, end};
}

TEST(Simulate, RunsTwoRanksAsOnPaper) {
  const Program two = one_f_one_b(2, 2);

  const Timeline run = timeline(two, Cost::unit(two.shape));

  // rank 0:  F0 F1 .  B0 B0 .  B1 B1     rank 1:  .  F0 B0 B0 F1 B1 B1
  EXPECT_THAT(run.ranks[0], ElementsAre(at(0, 1), at(1, 2), at(4, 6), at(7, 9)));
  EXPECT_THAT(run.ranks[1], ElementsAre(at(1, 2), at(2, 4), at(4, 5), at(5, 7)));
}

TEST(Simulate, SpeedsOfOneChangeNothing) {
  for (int p = 1; p <= 4; ++p)
    for (int m = 1; m <= 6; ++m) {
      const Program compute = one_f_one_b(p, m);
      for (const Program& each : {compute, split_backward(compute), insert_messages(compute)}) {
        const Cost cost = Cost::of_full_stage(each.shape, 3, 2, 4, 1);
        Cost with_speeds = cost;
        with_speeds.rank_speed.assign(static_cast<std::size_t>(p), 1);
        EXPECT_EQ(timeline(each, cost), timeline(each, with_speeds)) << "p " << p << ", m " << m;
      }
    }
}

TEST(Simulate, LatencyDelaysOnlyWhatCrossesRanks) {
  const Program two = one_f_one_b(2, 1);

  const Timeline run = timeline(two, Cost::of_full_stage(two.shape, 2, 3, 1, 5));

  EXPECT_THAT(run.ranks[1], ElementsAre(at(7, 9), at(9, 13)));
  EXPECT_THAT(run.ranks[0], ElementsAre(at(0, 2), at(18, 22)));
}

TEST(Simulate, OneFOneBMakespanIsTheClosedForm) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 16; ++m) {
      const Program schedule = one_f_one_b(p, m);
      const Cost cost = Cost::of_full_stage(schedule.shape, 3, 2, 2);
      EXPECT_EQ(makespan(schedule, cost), (m + p - 1) * 7) << "p=" << p << " m=" << m;
    }
}

TEST(Simulate, EqualsTheNaiveReplayWithAndWithoutMessages) {
  for (int p = 1; p <= 5; ++p)
    for (int m = 1; m <= 7; ++m)
      for (const bool messages : {false, true}) {
        const Program compute = split_backward(one_f_one_b(p, m));
        const Program schedule = messages ? insert_messages(compute) : compute;
        Cost cost = Cost::of_full_stage(schedule.shape, 3, 4, 2, 1);
        for (int r = 0; r < p; ++r) cost.rank_speed.push_back(1 + 0.25 * (r % 3));
        EXPECT_EQ(timeline(schedule, cost).ranks, NaiveReplay(schedule, cost).run());
      }
}

TEST(Simulate, MessagesCostNothingAtUnitTimes) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 9; ++m) {
      const Program schedule = one_f_one_b(p, m);
      const Cost cost = Cost::unit(schedule.shape);
      EXPECT_EQ(makespan(insert_messages(schedule), cost), makespan(schedule, cost));
      EXPECT_EQ(makespan(insert_messages_before_use(schedule), cost), makespan(schedule, cost));
    }
}

TEST(Simulate, AtomicPairWaitsForBothHalves) {
  // Rank 0 overlaps F1 with B0. Decoupled F1 starts at 1; atomic at 4, when B0 of stage 1 ended.
  const Program two = program(straight(2, 2), {"0F0 0F1+ 0B0 0B1", "1F0 1B0 1F1 1B1"});
  Cost cost = Cost::unit(two.shape);

  EXPECT_EQ(timeline(two, cost).ranks[0][1], at(1, 2));
  cost.pair.ticks.fill(2.5);
  EXPECT_EQ(timeline(two, cost).ranks[0][1], at(4, 6.5));
  EXPECT_EQ(timeline(two, cost).ranks[0][2], at(4, 6.5));
}

TEST(Simulate, AtomicPairsCanDeadlockWhereDecoupledOnesRun) {
  // F1 of stage 1 waits for F1 of stage 0, which the pair ties to B0, which waits for stage 1.
  const Program two = program(straight(2, 2), {"0F0 0F1+ 0B0 0B1", "1F0 1F1 1B0 1B1"});
  Cost cost = Cost::unit(two.shape);
  EXPECT_TRUE(std::holds_alternative<Timeline>(simulate(Graph(two), cost)));

  cost.pair.ticks.fill(3);
  const auto result = simulate(Graph(two), cost);

  ASSERT_TRUE(std::holds_alternative<Deadlock>(result));
  EXPECT_EQ(std::get<Deadlock>(result).message(),
            "rank 0 waits in 0F1 for 1B0 of rank 1; rank 1 waits in 1F1 for 0F1 of rank 0");
}

TEST(Simulate, ReportsTheShortestCycle) {
  // Ranks 0 and 1 wait for each other; rank 2 waits for rank 1 and is not part of it.
  const Program three =
      program(straight(3, 2), {"0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", "2F0 2F1 2B0 2B1"});

  const auto result = simulate(Graph(three), Cost::unit(three.shape));

  ASSERT_TRUE(std::holds_alternative<Deadlock>(result));
  EXPECT_EQ(std::get<Deadlock>(result).message(),
            "rank 0 waits in 0B0 for 1B0 of rank 1; rank 1 waits in 1F1 for 0F1 of rank 0");
}

TEST(Simulate, ContentionQueuesMessagesOfOneLink) {
  // Two forwards of one tick each, messages of 3 ticks: the second one arrives at 1 + 3 + 3.
  Program two = program(straight(2, 2), {"0F0 0F1", "1F0 1F1"});
  two.shape.forward_only = true;
  Cost cost = Cost::unit(two.shape);
  cost.message_bytes = 6;
  cost.bytes_per_tick = 2;

  EXPECT_THAT(timeline(two, cost).ranks[1], ElementsAre(at(4, 5), at(5, 6)));
  cost.contention = true;
  EXPECT_THAT(timeline(two, cost).ranks[1], ElementsAre(at(4, 5), at(7, 8)));

  // Latency keeps no link busy: both arrive two ticks later.
  cost.latency = 2;
  EXPECT_THAT(timeline(two, cost).ranks[1], ElementsAre(at(6, 7), at(9, 10)));
}

TEST(Simulate, RefusesACostOfAnotherShape) {
  const Program two = one_f_one_b(2, 2);
  const Cost other = Cost::unit(straight(3, 2));

  try {
    (void)simulate(Graph(two), other);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("Cost::forward has 3 values; the shape needs 2"));
  }
}

TEST(Cost, OfAChunkedAndSlicedShapeIsInIntegerTicks) {
  const Shape shape{4, 8, 3, Placement::loop(4, 2), {}, false};

  const Cost cost = Cost::of_full_stage(shape, 5, 4, 3, 1);

  EXPECT_EQ(cost.ticks_per_unit, 6);
  EXPECT_EQ(cost.ticks({Op::Forward, false, 0, 0, Stage{7}, MicroBatch{0}, Slice{2}}), 5);
  EXPECT_EQ(cost.ticks({Op::Backward, false, 0, 0, Stage{0}, MicroBatch{0}, Slice{0}}), 7);
  EXPECT_EQ(cost.latency, 6);
}

TEST(SimulateAsMeasured, OfASimulatedTimelineIsThatTimeline) {
  for (const int cores : {0, 2})
    for (const bool messages : {false, true}) {
      const Program compute = split_backward(one_f_one_b(4, 6));
      const Program schedule = messages ? insert_messages(compute) : compute;
      Cost cost = Cost::of_full_stage(schedule.shape, 3, 2, 4, 1);
      cost.cores = cores;
      const Graph graph(schedule);
      const Timeline run = timeline(schedule, cost);
      Cost longer = cost;  // what passes take is read from the timeline
      for (double& ticks : longer.forward) ticks *= 2;

      EXPECT_EQ(std::get<Timeline>(simulate_as_measured(graph, longer, run)), run);
    }
}

TEST(SimulateAsMeasured, RemovesGapsAndScalesUnits) {
  const Program two = one_f_one_b(2, 1);
  Cost cost = Cost::unit(two.shape);
  cost.ticks_per_unit = 10;
  // Rank 0: F 1 to 2, B 9 to 12; rank 1: F 3 to 4, B 5 to 7: seconds, with pauses.
  const Timeline measured{{{{1, 2}, {9, 12}}, {{3, 4}, {5, 7}}}, 1};

  const Timeline run = std::get<Timeline>(simulate_as_measured(Graph(two), cost, measured));

  EXPECT_THAT(run.ranks[0], ElementsAre(at(0, 10), at(40, 70)));
  EXPECT_THAT(run.ranks[1], ElementsAre(at(10, 20), at(20, 40)));
  Timeline backwards = measured;
  backwards.ranks[0][0] = at(2, 1);
  EXPECT_THROW((void)simulate_as_measured(Graph(two), cost, backwards), InvalidArgument);
}

}  // namespace
}  // namespace millrace
