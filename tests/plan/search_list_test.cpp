// List scheduling and relist: same actions, within the limit, never worse. The front of what a
// search found.
#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/search.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/search_cases.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

std::vector<Action> sorted_actions(const Program& program) {
  std::vector<Action> actions;
  for (const auto& list : program.ranks)
    for (Action action : list) {
      action.with_next = false;
      actions.push_back(action);
    }
  std::ranges::sort(actions);
  return actions;
}

std::vector<std::vector<double>> starts(const Program& program, const Cost& cost) {
  const Graph graph(program);
  const auto result = simulate(graph, cost);
  std::vector<std::vector<double>> priority;
  for (const auto& rank : std::get<Timeline>(result).ranks) {
    priority.emplace_back();
    for (const Interval& interval : rank) priority.back().push_back(interval.start);
  }
  return priority;
}

TEST(Relist, CatalogueEntries_NeverGetWorse) {
  int improved = 0;
  for (const ScheduleEntry& entry : schedules()) {
    Program program = generate(entry.name, testing_plan::fitting(entry));
    Cost cost = Cost::of_full_stage(program.shape, 10, 12, 8, 1);
    for (std::size_t i = 0; i < cost.forward.size(); i += 3) cost.forward[i] *= 1.5;
    const double limit = test::most_held(program, cost);
    for (const Objective objective : {Objective::Makespan, Objective::Span}) {
      const double before = test::simulated(program, cost, objective);
      const auto result = relist(program, cost, {.memory_limit = limit, .objective = objective});
      ASSERT_TRUE(result.has_value()) << entry.name;
      EXPECT_EQ(sorted_actions(*result), sorted_actions(program)) << entry.name;
      EXPECT_THAT(verify(*result), testing::IsEmpty()) << entry.name;
      EXPECT_LE(test::most_held(*result, cost), limit * (1 + 1e-9)) << entry.name;
      const double after = test::simulated(*result, cost, objective);
      EXPECT_LE(after, before * (1 + 1e-12)) << entry.name;
      if (after < before) ++improved;
    }
  }
  EXPECT_GT(improved, 5);
}

TEST(ListSchedule, StaysWithinEveryLimitItAccepts) {
  const Program program = split_backward(generate("gpipe", {.ranks = 4, .micro_batches = 8}));
  const Cost cost = Cost::of_full_stage(program.shape, 3, 4, 2);
  int listed = 0;
  for (const double limit : {1, 2, 3, 4, 5, 6, 7, 8})
    for (const WeightRule rule :
         {WeightRule::Filler, WeightRule::FitsGap, WeightRule::ByPriority}) {
      const auto result = list_schedule(
          program, cost, starts(program, cost), {.memory_limit = limit, .weight_rule = rule});
      if (!result) continue;
      ++listed;
      EXPECT_THAT(verify(*result), testing::IsEmpty());
      EXPECT_LE(test::most_held(*result, cost), limit);
    }
  EXPECT_GE(listed, 16);
  EXPECT_FALSE(
      list_schedule(program, cost, starts(program, cost), {.memory_limit = 0.5}).has_value());
}

// At tick 4 rank 0 owes a W of three ticks and knows of nothing else; rank 1 starts the I that it
// will wait for. The lower rank decides first, so its W runs, although that I ends in W's middle.
TEST(ListSchedule, EqualStart_LowerRankDecidesFirst) {
  const Program program = split_backward(generate("1f1b", {.ranks = 2, .micro_batches = 2}));
  Cost cost = Cost::unit(program.shape);
  cost.backward_weight.front() = 3;
  std::vector<std::vector<double>> in_order(2);
  for (auto& rank : in_order) rank = {0, 1, 2, 3, 4, 5};

  const auto result = list_schedule(program, cost, in_order, {.weight_rule = WeightRule::FitsGap});

  ASSERT_TRUE(result.has_value());
  EXPECT_THAT(write_csv(*result), testing::StartsWith("0F0,0F1,0I0,0W0,0I1,0W1\n"));
}

TEST(ListSchedule, RefusesWrongSizesMessagesAndContention) {
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  Cost cost = Cost::unit(program.shape);
  EXPECT_THROW(static_cast<void>(list_schedule(program, cost, {})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(list_schedule(program, cost, {{1}, {1}})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(relist(insert_messages(program), cost)), InvalidArgument);
  cost.contention = true;
  EXPECT_THROW(static_cast<void>(relist(program, cost)), InvalidArgument);
}

FoundSchedule found(const char* name, double makespan, double span, double peak) {
  FoundSchedule result;
  result.generator = name;
  result.makespan = makespan;
  result.span = span;
  result.peak_memory = peak;
  return result;
}

TEST(ParetoFront, KeepsWhatNothingBeatsAndSortsByMemory) {
  const auto front = pareto_front({found("slow", 12, 12, 4),
                                   found("wide", 8, 8, 8),
                                   found("beaten", 12, 13, 4),
                                   found("equal", 8, 8, 8),
                                   found("span", 9, 7, 8)});
  ASSERT_EQ(front.size(), 3U);
  EXPECT_EQ(front[0].generator, "slow");
  EXPECT_EQ(front[1].generator, "wide");
  EXPECT_EQ(front[2].generator, "span");
  EXPECT_EQ(front_table(front),
            " peak memory      makespan          span  schedule\n"
            "           4            12            12  slow\n"
            "           8             8             8  wide\n"
            "           8             9             7  span\n");
  EXPECT_THAT(front_svg(front), testing::HasSubstr("<title>span: makespan 9, span 7"));
}

TEST(ParetoFront, SaysTheStepOfSeveralPasses) {
  FoundSchedule slow = found("slow", 12, 12, 4), wide = found("wide", 8, 8, 8);
  slow.step = 24;
  wide.step = 15.5;
  EXPECT_EQ(front_table({slow, wide}),
            " peak memory      makespan          step          span  schedule\n"
            "           4            12            24            12  slow\n"
            "           8             8          15.5             8  wide\n");
  EXPECT_THAT(front_svg({slow}), testing::HasSubstr("<title>slow: makespan 12, step 24, span 12"));
}

TEST(ParetoFront, Diagram_NamesItsPoints) {
  const std::string svg =
      front_svg({found("slow", 1657.35, 1657.35, 4), found("wide", 1138.2, 1128, 12)});

  for (const char* mark : {">1100<", ">1200<", ">1700<", ">4<", ">6<", ">12<", ">slow<", ">wide<"})
    EXPECT_THAT(svg, testing::HasSubstr(mark));
  EXPECT_THAT(svg, testing::Not(testing::HasSubstr(">1128<")));
}

TEST(ParetoFront, OneScheduleOrNoneIsStillAPicture) {
  EXPECT_THAT(front_svg({}), testing::EndsWith("</svg>\n"));
  EXPECT_THAT(front_svg({found("only", 0, 0, 0)}), testing::Not(testing::HasSubstr("nan")));
}

}  // namespace
}  // namespace millrace
