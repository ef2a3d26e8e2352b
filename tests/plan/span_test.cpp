// The span of an order: the smallest over all starts, what a step costs when steps overlap.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/random_order.hpp"
#include "plan/search_cases.hpp"
#include "support/figures.hpp"
#include "support/order_span.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using testing_plan::program;
using testing_plan::straight;

Report span_report(const Program& program, const Cost& cost) {
  const Graph graph(program);
  return report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
}

/// Random orders of random costs, links and placements.
struct RandomCase {
  Program program;
  Cost cost;
};

RandomCase random_case(int number) {
  const int ranks = 2 + number % 3, m = 2 + number % 4;
  const Placement placement = number % 5 == 0 ? Placement::vee(ranks) : Placement::straight(ranks);
  test::SmallCase drawn = test::small_case(number, ranks, m, placement);
  RandomKey key{.seed = 78, .purpose = Purpose::Test, .step = static_cast<std::uint64_t>(number)};
  std::uint32_t draw = 0;
  for (auto* times : {&drawn.cost.forward, &drawn.cost.backward_input, &drawn.cost.backward_weight})
    for (double& ticks : *times) ticks = 1U << random_below(key, draw++, 6);
  return {test::RandomOrder(drawn.shape, drawn.cost, number).draw(), std::move(drawn.cost)};
}

/// Ticks per step over enough steps that every cycle of up to four ranks closes.
double slope(const Program& program, const Cost& cost) {
  constexpr std::size_t steps = 372, round = 12;
  const Iterations run = simulate_iterations(Graph(program), cost, steps, Barrier::No);
  return (run.ends[steps - 1] - run.ends[steps - 1 - round]) / round;
}

TEST(Span, LateStart_ShortensTheSpan) {
  // Rank 1 runs from 10 to 94, but its forwards may wait for 0F2, which ends at 30: from 28 on
  // nothing holds it up. Rank 0 needs 38.
  const Program two =
      program(straight(2, 3),
              {"0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1 0W2", "1F0 1F1 1F2 1I0 1I1 1I2 1W0 1W1 1W2"});
  Cost cost = Cost::of_full_stage(two.shape, 1, 1, 1);
  cost.forward = {10, 1};
  cost.backward_weight = {1, 20};

  const Report all = span_report(two, cost);

  EXPECT_EQ(all.span_asap, 84);
  EXPECT_EQ(all.span, 66);
  EXPECT_EQ(all.bubble_span, 0);
}

TEST(Span, IsAFractionWhereTwoRanksDecideItTogether) {
  // Each rank begins with its own replica's first stage and ends with the other's second: 3 + 1 + 4
  // from rank 0 to rank 1 and 3 + 2 + 4 back, 17 in two steps. As soon as possible rank 0 needs 9.
  const Shape shape{2, 2, 1, Placement::mirrored(2), {Replica{0}, Replica{1}}, true};
  const Program two = program(shape, {"0F0 1'F1", "0'F1 1F0"});
  Cost cost = Cost::of_full_stage(shape, 1, 1, 1);
  cost.ticks_per_unit = 1;
  cost.forward = {3, 4};
  cost.link_latency = {0, 1, 2, 0};

  const Report all = span_report(two, cost);

  EXPECT_EQ(all.span, 8.5);
  EXPECT_EQ(all.span_asap, 9);
  EXPECT_EQ(slope(two, cost), 8.5);
}

TEST(Span, IsSmallestAndSlopeOfManySteps) {
  int below = 0;
  for (int number = 0; number < 400; ++number) {
    const RandomCase of = random_case(number);
    const Report all = span_report(of.program, of.cost);
    ASSERT_DOUBLE_EQ(all.span, testing_plan::OrderSpan(of.program, of.cost).value()) << number;
    ASSERT_NEAR(all.span, slope(of.program, of.cost), 1e-9 * all.span) << number;
    ASSERT_LE(all.span, all.span_asap) << number;
    if (all.span < all.span_asap) ++below;
  }
  EXPECT_GT(below, 10);
}

TEST(Span, IsTheSlopeOfManyStepsOfEverySchedule) {
  for (const ScheduleEntry& entry : schedules()) {
    const ScheduleOptions options = testing_plan::fitting(entry);
    const Program compute = generate(entry.name, options);
    for (const bool lowered : {false, true}) {
      const Program schedule = lowered ? insert_messages(insert_reductions(compute)) : compute;
      Cost cost = Cost::of_full_stage(schedule.shape, 5, 7, 4);
      cost.forward[1] += 3;
      cost.latency = 2;
      cost.bytes_per_tick = 1;
      cost.message_bytes = 3;
      cost.contention = true;
      if (schedule.shape.slices == 1) cost.pair.ticks.fill(9);

      const Report all = span_report(schedule, cost);

      EXPECT_DOUBLE_EQ(all.span * cost.ticks_per_unit, cost.ticks_per_unit * slope(schedule, cost))
          << entry.name << lowered;
    }
  }
}

TEST(Span, OverlappingSteps_IdleCausesSumUp) {
  for (int number = 0; number < 120; ++number) {
    const RandomCase of = random_case(number);
    const Report all = span_report(of.program, of.cost);
    for (const RankReport& rank : all.ranks) {
      EXPECT_NEAR(rank.busy + rank.idle_overlapped.total(), all.span, 1e-12 * all.span) << number;
      EXPECT_EQ(rank.idle_overlapped.warm_up, 0);
      EXPECT_EQ(rank.idle_overlapped.drain, 0);
      if (of.cost.link_latency.empty()) {
        EXPECT_EQ(rank.idle_overlapped.transfer, 0);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
