// The exact solver against brute force on tiny cases, and its proofs on the committed set.
#include <chrono>
#include <numeric>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/byte_oracle.hpp"
#include "plan/every_order.hpp"
#include "plan/random_order.hpp"
#include "plan/search_cases.hpp"
#include "support/order_span.hpp"

namespace millrace {
namespace {

using test::brute_force;
using test::SmallCase;

ExactResult solve(const SmallCase& of) {
  return solve_exact(of.shape,
                     of.cost,
                     {.objective = of.objective,
                      .memory_limit = of.memory_limit,
                      .fused = of.fused,
                      .state_limit = 2'000'000});
}

TEST(Exact, EqualsBruteForceOnTinyCases) {
  int number = 0, bounded = 0;
  const auto check = [&](const SmallCase& of) {
    const double best = brute_force(of);
    const ExactResult result = solve(of);
    ASSERT_TRUE(result.proven) << number;
    ASSERT_EQ(result.value, best) << number;
    ASSERT_LE(lower_bound(of.shape, of.cost, of.objective, of.memory_limit), best) << number;
    if (of.memory_limit < std::numeric_limits<double>::infinity()) ++bounded;
  };
  for (int draw = 0; draw < 24; ++draw) {
    check(test::small_case(number++, 2, 2, Placement::straight(2)));
    check(test::small_case(number++, 2, 1, Placement::vee(2)));
    check(test::small_case(number++, 2, 1, Placement::loop(2, 2)));
  }
  for (int draw = 0; draw < 2; ++draw) {
    SmallCase fused = test::small_case(number++, 2, 3, Placement::straight(2));
    fused.fused = true;
    check(fused);
    check(test::small_case(number++, 3, 2, Placement::straight(3)));
  }
  EXPECT_GT(bounded, 20);
}

/// Unequal stages whose last ranks may start late: powers of two from 1 to 16.
SmallCase spread_case(int number, int ranks, int micro_batches) {
  SmallCase of = test::small_case(1, ranks, micro_batches, Placement::straight(ranks));
  RandomKey key{.seed = 97, .purpose = Purpose::Test, .step = static_cast<std::uint64_t>(number)};
  std::uint32_t drawn = 0;
  for (auto* times : {&of.cost.forward, &of.cost.backward_input, &of.cost.backward_weight})
    for (double& ticks : *times) ticks = 1U << random_below(key, drawn++, 5);
  of.memory_limit = std::numeric_limits<double>::infinity();
  of.objective = Objective::Span;
  of.fused = false;
  return of;
}

TEST(Exact, SpanEqualsBruteForceOverAllOrders) {
  for (int number = 0; number < 20; ++number)
    for (const auto& [ranks, micro_batches] : {std::pair{2, 1}, {2, 2}, {3, 2}}) {
      const SmallCase of = spread_case(number, ranks, micro_batches);
      const double best = brute_force(of);
      const ExactResult result = solve(of);
      ASSERT_TRUE(result.proven) << number;
      ASSERT_EQ(result.value, best) << number << ", " << ranks << " ranks";
      ASSERT_LE(lower_bound(of.shape, of.cost, of.objective), best) << number;
      const SearchResult found = search(test::search_options(of, 100));
      ASSERT_EQ(found.best->span, best) << number;
      ASSERT_TRUE(found.proven) << number;
    }
}

TEST(Exact, NoRandomOrderIsBelowAProvenSpan) {
  for (int number = 0; number < 8; ++number) {
    SmallCase of = spread_case(100 + number, 3 + number % 2, 4);
    if (number % 4 > 1) of.memory_limit = 8;
    const ExactResult result = solve(of);
    ASSERT_TRUE(result.proven) << number;
    ASSERT_EQ(testing_plan::OrderSpan(*result.program, of.cost).value(), result.value) << number;
    for (int order = 0; order < 3000; ++order) {
      const Program program = test::RandomOrder(of.shape, of.cost, 8 * order + number).draw();
      if (test::most_held(program, of.cost) > of.memory_limit) continue;
      ASSERT_GE(testing_plan::OrderSpan(program, of.cost).value(), result.value) << number;
    }
  }
}

TEST(Exact, ARankThatStartsLateIsSeenByTheProof) {
  // As soon as possible, 108 and 157 are the best; starts that wait reach less.
  SmallCase free = spread_case(0, 3, 4);
  free.cost.forward = {9, 2, 3};
  free.cost.backward_input = {2, 13, 11};
  free.cost.backward_weight = {3, 9, 10};
  SmallCase held = spread_case(0, 4, 4);
  held.cost.forward = {14, 9, 3, 4};
  held.cost.backward_input = {4, 16, 8, 16};
  held.cost.backward_weight = {2, 11, 8, 4};
  held.cost.memory_forward = {2, 2, 2, 2};
  held.cost.memory_input = held.cost.memory_weight = {-1, -1, -1, -1};
  held.memory_limit = 8;
  for (const auto& [of, most] : {std::pair{free, 104.0}, {held, 149.0}}) {
    const ExactResult result = solve(of);
    EXPECT_TRUE(result.proven);
    EXPECT_LE(result.value, most);
    EXPECT_EQ(testing_plan::OrderSpan(*result.program, of.cost).value(), result.value);
  }
}

TEST(Exact, ProvesEveryCommittedCaseWithinTenSeconds) {
  for (const SmallCase& of : test::committed_cases()) {
    const auto begin = std::chrono::steady_clock::now();
    const ExactResult result = solve(of);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(taken.count(), 10);
    ASSERT_TRUE(result.proven) << of.shape.ranks << " ranks, " << of.shape.micro_batches;
    const double bound = lower_bound(of.shape, of.cost, of.objective, of.memory_limit);
    ASSERT_TRUE(result.program.has_value());
    EXPECT_TRUE(verify(*result.program).empty());
    EXPECT_EQ(test::simulated(*result.program, of.cost, of.objective), result.value);
    EXPECT_LE(test::most_held(*result.program, of.cost), of.memory_limit);
    EXPECT_LE(bound, result.value);
  }
}

TEST(Exact, PeaksInsidePasses_EqualBruteForce) {
  int none = 0;
  for (int number = 0; number < 32; ++number) {
    SmallCase of = number % 2 == 0 ? test::small_case(number, 2, 1, Placement::vee(2))
                                   : test::small_case(number, 2, 2, Placement::straight(2));
    for (std::size_t s = 0; s < of.cost.memory_input_peak.size(); ++s)
      of.cost.memory_input_peak[s] =
          static_cast<double>((7 * number + 3 * static_cast<int>(s)) % 11);
    of.memory_limit = 4 * of.shape.chunks() + number % 13;
    of.fused = number % 4 == 1;
    const double best = brute_force(of);
    const ExactResult result = solve(of);
    ASSERT_TRUE(result.proven) << number;
    ASSERT_EQ(result.value, best) << number;
    ASSERT_LE(lower_bound(of.shape, of.cost, of.objective, of.memory_limit), best) << number;
    if (!result.program) ++none;
  }
  EXPECT_GT(none, 2);
  EXPECT_LT(none, 20);
}

/// The stages of a pipeline whose I adds bytes only while it runs, in some leaves more than F did.
test::TinyPipeline tiny_pipeline(int number, int ranks, int micro_batches) {
  RandomKey key{.seed = 33, .purpose = Purpose::Test, .step = static_cast<std::uint64_t>(number)};
  std::uint32_t drawn = 0;
  const auto draw = [&](int low, int high) {
    return low +
           static_cast<int>(random_below(key, drawn++, static_cast<std::uint32_t>(high - low + 1)));
  };
  test::TinyPipeline of{.stages = {}, .micro_batches = micro_batches};
  for (int s = 0; s < ranks; ++s) {
    test::TinyStage stage{.times = {draw(1, 9), draw(1, 9), draw(1, 9)}, .added = draw(3, 9)};
    stage.passing = draw(0, 12);
    stage.left = draw(-stage.added, 5);
    of.stages.push_back(stage);
  }
  of.limit = of.least_limit() + draw(-1, 9 * micro_batches);
  return of;
}

Cost cost_of(const test::TinyPipeline& of) {
  Cost cost;
  for (const test::TinyStage& stage : of.stages) {
    cost.forward.push_back(stage.times[0]);
    cost.backward_input.push_back(stage.times[1]);
    cost.backward_weight.push_back(stage.times[2]);
    cost.memory_forward.push_back(stage.added);
    cost.memory_input_peak.push_back(stage.passing);
    cost.memory_input.push_back(stage.left);
    cost.memory_weight.push_back(-stage.added - stage.left);
  }
  return cost;
}

/// Whether the oracle, the search, its bound and its proof say the same of a pipeline.
void expect_same(const test::TinyPipeline& of, int number) {
  const int best = of.best();
  const Cost cost = cost_of(of);
  const int ranks = static_cast<int>(of.stages.size());
  SearchOptions options{.ranks = ranks,
                        .micro_batches = of.micro_batches,
                        .chunks = 1,
                        .memory_limit = static_cast<double>(of.limit),
                        .cost = [&](const Shape&) { return cost; },
                        .budget = 200,
                        .bidirectional = false};
  const SearchResult found = search(options);
  ASSERT_EQ(found.best.has_value(), best >= 0) << number;
  const Shape shape{
      .ranks = ranks, .micro_batches = of.micro_batches, .placement = Placement::straight(ranks)};
  const ExactResult exact = solve_exact(shape, cost, {.memory_limit = options.memory_limit});
  ASSERT_TRUE(exact.proven) << number;
  ASSERT_EQ(exact.program.has_value(), best >= 0) << number;
  if (best < 0) return;
  ASSERT_EQ(exact.value, best) << number;
  ASSERT_EQ(found.best->makespan, best) << number;
  ASSERT_TRUE(found.proven) << number;
  const double bound = lower_bound(shape, cost, Objective::Makespan, options.memory_limit);
  ASSERT_LE(bound, best) << number;
  ASSERT_EQ(test::most_held(found.best->program, cost), found.best->peak_memory) << number;
  const Graph graph(found.best->program);
  double drawn = 0;
  for (const auto& curve : memory_over_time(graph, cost, std::get<Timeline>(simulate(graph, cost))))
    for (const MemoryStep& step : curve) drawn = std::max(drawn, step.bytes);
  ASSERT_EQ(drawn, found.best->peak_memory) << number;
  VerifyOptions checks{.memory_limit = {options.memory_limit}, .cost = cost};
  ASSERT_TRUE(verify(found.best->program, checks).empty()) << number;
  checks.memory_limit = {found.best->peak_memory - 1};
  ASSERT_FALSE(verify(found.best->program, checks).empty()) << number;
}

TEST(Exact, AgreesWithEveryOrderWherePassesHoldMoreInside) {
  int none = 0;
  for (int number = 0; number < 150; ++number) {
    const test::TinyPipeline of = tiny_pipeline(number, 2, 2);
    if (of.best() < 0) ++none;
    expect_same(of, number);
  }
  EXPECT_GT(none, 3);
  for (int number = 150; number < 162; ++number) expect_same(tiny_pipeline(number, 3, 2), number);
  for (int number = 162; number < 168; ++number) {
    test::TinyPipeline of = tiny_pipeline(number, 2, 3);
    of.limit = std::min(of.limit, of.least_limit() + 6);
    expect_same(of, number);
  }
}

}  // namespace
}  // namespace millrace
