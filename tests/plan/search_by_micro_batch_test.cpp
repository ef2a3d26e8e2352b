// Recompute by (stage, micro-batch): against integer programs that choose it for published orders,
// known optima of equal stages, and plans that hold such a choice.
#include <algorithm>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "plan/expect_sound.hpp"

namespace millrace {
namespace {

SearchOptions asked(int ranks, int micro_batches, double limit) {
  SearchOptions options;
  options.ranks = ranks;
  options.micro_batches = micro_batches;
  options.chunks = 1;
  options.memory_limit = limit;
  options.bidirectional = false;
  options.recompute = true;
  options.cost = [](const Shape& shape) { return Cost::unit(shape); };
  return options;
}

std::ptrdiff_t recomputes(const Program& program) {
  std::ptrdiff_t count = 0;
  for (const auto& list : program.ranks)
    count += std::ranges::count(list, Op::Recompute, &Action::op);
  return count;
}

/// Written by tests/soak/recompute_oracle.py, which says what `best` and `by_stage` are.
TEST(SearchByMicroBatch, MeetsIntegerProgramsAndStageChoices) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/recompute_by_micro_batch.json");
  std::vector<double> beyond;
  for (const nlohmann::json& one : nlohmann::json::parse(file)) {
    const ParsedCosts costs = read_costs(one["costs"].dump());
    ASSERT_TRUE(costs.costs.has_value());
    SearchOptions options = asked(one["costs"]["ranks"], one["micro_batches"], one["limit"]);
    options.cost = [&](const Shape& shape) { return cost_of(shape, *costs.costs); };
    const SearchResult result = search(options);
    ASSERT_TRUE(result.best.has_value());
    test::expect_sound(options, *result.best);
    const double best = one["best"], by_stage = one["by_stage"];
    EXPECT_LE(result.lower_bound, best);
    EXPECT_LE(result.best->makespan, by_stage);
    beyond.push_back(result.best->makespan / best - 1);
  }
  ASSERT_EQ(beyond.size(), 20);
  std::ranges::sort(beyond);
  EXPECT_LE(beyond[10], 0.005);
  EXPECT_LE(beyond.back(), 0.02);
}

TEST(SearchByMicroBatch, FindsKnownMakespansOfEqualStages) {
  const auto found = [](int ranks, int micro_batches, double limit) {
    const SearchOptions options = asked(ranks, micro_batches, limit);
    const SearchResult result = search(options);
    test::expect_sound(options, *result.best);
    EXPECT_FALSE(result.proven);
    return result.best->makespan;
  };
  EXPECT_EQ(found(2, 4, 1), 15);
  EXPECT_LE(found(4, 8, 2), 31);
  EXPECT_LE(found(8, 32, 4), 121);
}

TEST(SearchByMicroBatch, ProvesWhereNothingHasToRecompute) {
  SearchOptions options = asked(3, 5, 3);
  const SearchResult result = search(options);
  EXPECT_TRUE(result.proven);
  EXPECT_EQ(recomputes(result.best->program), 0);
}

TEST(SearchByMicroBatch, BothReplicasMayChoose) {
  SearchOptions options = asked(4, 8, 1.5);
  options.chunks = 2;
  options.bidirectional = true;
  options.cost = [](const Shape& shape) {
    Cost cost = Cost::unit(shape);
    cost.data_parallel = 2;
    cost.gradient_bytes.assign(static_cast<std::size_t>(shape.stages()), 1);
    return cost;
  };
  options.budget = 1000;
  const SearchResult result = search(options);
  ASSERT_TRUE(result.best.has_value());
  for (const FoundSchedule& found : result.front) {
    const Cost cost = options.cost(found.program.shape);
    const Program whole = insert_late_reductions(found.program);
    EXPECT_DOUBLE_EQ(test::simulated(whole, cost, Objective::Makespan), found.makespan);
  }
}

TEST(SearchByMicroBatch, BeginsWithItsOwnPlan) {
  SearchOptions options = asked(4, 8, 2);
  const SearchResult first = search(options);
  const Program best = first.best->program;
  EXPECT_GT(recomputes(best), 0);
  EXPECT_THAT(describe_recompute(best), ::testing::EndsWith(" in part"));
  const ParsedPlan read = read_plan(write_plan({best, {}}));
  ASSERT_TRUE(read.plan.has_value());
  EXPECT_EQ(read.plan->program, best);
  EXPECT_THROW((void)write_csv(best), InvalidArgument);

  options.from = std::make_shared<const Program>(best);
  options.budget = 0;
  EXPECT_LE(search(options).best->makespan, first.best->makespan);
}

TEST(SearchByMicroBatch, IsTheSameEveryTime) {
  const SearchOptions options = asked(3, 6, 1.5);
  EXPECT_EQ(search(options).best->program, search(options).best->program);
}

TEST(RecomputeText, NamesStagesThatRecomputeInPart) {
  const Program plain = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  EXPECT_EQ(describe_recompute(plain), "none");
  EXPECT_EQ(describe_recompute(insert_recompute(plain, std::vector<bool>{true, false})),
            "stages:0");
  EXPECT_EQ(describe_recompute(insert_recompute(plain,
                                                [](const Action& action) {
                                                  return action.stage.value == 0 &&
                                                         action.micro_batch.value == 1;
                                                })),
            "stages:0 in part");
  EXPECT_EQ(describe_recompute(insert_recompute(plain)), "all");
}

}  // namespace
}  // namespace millrace
