// The search: exact where the optimum is known, never worse than the published schedules, within
// the limit, deterministic, and the Zero Bubble paper's cases.
#include "millrace/scheduler/plan/search.hpp"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/search_cases.hpp"

namespace millrace {
namespace {

using test::SmallCase;

/// F, I, W, latency and memory changes of one full stage.
struct Times {
  double forward = 1, input = 1, weight = 1, latency = 0;
  double memory_forward = 1, memory_input = 0, memory_weight = -1;

  [[nodiscard]] Cost operator()(const Shape& shape) const {
    Cost cost = Cost::of_full_stage(shape, forward, input, weight, latency);
    const double share = static_cast<double>(shape.ranks) / shape.stages();
    std::ranges::fill(cost.memory_forward, memory_forward * share);
    std::ranges::fill(cost.memory_input, memory_input * share);
    std::ranges::fill(cost.memory_weight, memory_weight * share);
    return cost;
  }
};

/// Holds for every result: verified, the figures are the simulation's, the memory within the limit.
void expect_sound(const SearchOptions& options, const SearchResult& result) {
  ASSERT_TRUE(result.best.has_value());
  const FoundSchedule& best = *result.best;
  const Cost cost =
      options.cost ? options.cost(best.program.shape) : Cost::unit(best.program.shape);
  EXPECT_THAT(verify(best.program), testing::IsEmpty());
  EXPECT_NEAR(test::simulated(best.program, cost, Objective::Makespan),
              best.makespan,
              1e-9 * best.makespan);
  EXPECT_NEAR(test::simulated(best.program, cost, Objective::Span), best.span, 1e-9 * best.span);
  EXPECT_LE(test::most_held(best.program, cost), options.memory_limit * (1 + 1e-9));
  EXPECT_LE(result.lower_bound, best.value(options.objective) * (1 + 1e-12));
  for (const FoundSchedule& found : result.front)
    EXPECT_TRUE(found.value(options.objective) >= best.value(options.objective));
}

TEST(Search, EqualsTheExactOptimumOfEveryCommittedCase) {
  for (const SmallCase& of : test::committed_cases()) {
    const ExactResult exact = solve_exact(
        of.shape, of.cost, {.objective = of.objective, .memory_limit = of.memory_limit});
    ASSERT_TRUE(exact.proven);
    const SearchOptions options = test::search_options(of, 500);
    const SearchResult result = search(options);
    expect_sound(options, result);
    EXPECT_EQ(result.best->value(of.objective), exact.value);
    EXPECT_TRUE(result.proven);
    EXPECT_EQ(result.gap, 0);
  }
}

/// The rate of the Zero Bubble paper: idle share of the longest span.
double rate(const SearchOptions& options, const Times& times) {
  const SearchResult result = search(options);
  expect_sound(options, result);
  const double work = options.micro_batches * (times.forward + times.input + times.weight);
  return (result.best->span - work) / result.best->span;
}

TEST(Search, PaperLimits_IsNotWorse) {
  const Times times{.forward = 18.522,
                    .input = 18.086,
                    .weight = 9.337,
                    .latency = 0.601,
                    .memory_forward = 201216,
                    .memory_input = -127488,
                    .memory_weight = -73728};
  SearchOptions options{.ranks = 8,
                        .micro_batches = 24,
                        .chunks = 1,
                        .objective = Objective::Span,
                        .cost = times,
                        .budget = 200};
  options.memory_limit = 8 * times.memory_forward;
  EXPECT_LE(std::round(rate(options, times) * 1e4), 1585);
  options.memory_limit = 16 * times.memory_forward;
  EXPECT_LE(std::round(rate(options, times) * 1e4), 433);
}

TEST(Search, IsNotWorseThanTheCatalogue) {
  const Times cases[] = {{}, {.forward = 10, .input = 12, .weight = 8, .latency = 1}};
  for (const Times& times : cases)
    for (const double limit : {3.0, 6.0}) {
      SearchOptions options{
          .ranks = 4, .micro_batches = 9, .memory_limit = limit, .cost = times, .budget = 200};
      const SearchResult result = search(options);
      expect_sound(options, result);
      int compared = 0;
      for (const ScheduleEntry& entry : schedules()) {
        if (entry.takes("slices") || entry.name == "forward") continue;
        ScheduleOptions asked{.ranks = 4, .micro_batches = 9};
        if (entry.takes("memory_limit")) asked.memory_limit = limit;
        const Costs costs{.forward = {times.forward},
                          .input = {times.input},
                          .weight = {times.weight},
                          .latency = {times.latency}};
        try {
          const Program program = decouple_pairs(generate(entry.name, asked, costs));
          const Cost cost = times(program.shape);
          if (test::most_held(program, cost) > limit) continue;
          ++compared;
          EXPECT_LE(result.best->makespan,
                    test::simulated(program, cost, Objective::Makespan) * (1 + 1e-12))
              << entry.name;
        } catch (const InvalidArgument&) {
          continue;  // this schedule has no program for these counts
        }
      }
      EXPECT_GE(compared, 2);
    }
}

/// Five unequal stages whose optimum no generator and no list schedule meets.
SearchOptions unequal_stages(const SmallCase& of) {
  SearchOptions options = test::search_options(of, 1000);
  options.memory_limit = 20;
  options.seed = 11;
  return options;
}

TEST(Search, ATreeOfSums_IsRejected) {
  const auto cost = [](const Shape& shape) {
    Cost result = Cost::unit(shape);
    result.tree_of_sums = true;
    result.gradient_bytes.assign(static_cast<std::size_t>(shape.stages()), 1);
    return result;
  };
  EXPECT_THROW((void)search({.ranks = 2, .micro_batches = 4, .cost = cost}), InvalidArgument);
}

TEST(Search, DependsOnNothingButItsOptionsAndSeed) {
  const SmallCase of = test::small_case(5, 5, 12, Placement::straight(5));
  const SearchOptions options = unequal_stages(of);
  const SearchResult first = search(options), second = search(options);
  ASSERT_TRUE(first.best && second.best);
  EXPECT_EQ(first.best->program, second.best->program);
  EXPECT_EQ(first.evaluations, second.evaluations);
  EXPECT_GE(first.evaluations, options.budget);
  EXPECT_FALSE(first.cut_by_time);
}

TEST(Search, LocalSearchImprovesUnequalStages) {
  const SmallCase of = test::small_case(6, 5, 12, Placement::straight(5));
  SearchOptions options = unequal_stages(of);
  options.budget = 0;
  const SearchResult without = search(options);
  options.budget = 5000;
  const SearchResult with = search(options);
  expect_sound(options, with);
  EXPECT_LT(with.best->value(of.objective), without.best->value(of.objective));
  EXPECT_EQ(with.best->refinement, "local search");
  EXPECT_GT(with.evaluations, without.evaluations);
}

/// F of slice k costs 2 + k on every stage: a slice attends to the ones before it.
Cost growing_slices(const Shape& shape) {
  Cost cost = Cost::of_full_stage(shape, 2, 2, 2);
  for (std::size_t i = 0; i < cost.forward.size(); ++i)
    cost.forward[i] +=
        cost.forward[i] * static_cast<double>(i % static_cast<std::size_t>(shape.slices)) / 2;
  return cost;
}

TEST(Search, TakesTheSlicedSchedulesWhenSlicesAreAsked) {
  for (const auto* name : {"seq-1f1b", "terapipe", "seqpipe", "seq-smart-vpp"}) {
    SearchOptions options{
        .ranks = 4, .micro_batches = 6, .slices = 2, .cost = growing_slices, .budget = 300};
    options.memory_limit = 4;
    const SearchResult result = search(options);
    expect_sound(options, result);
    EXPECT_GT(result.lower_bound, 0);
    EXPECT_EQ(result.best->program.shape.slices, 2);
    EXPECT_THAT(to_string(result.best->parameters), testing::HasSubstr("q=2"));
    const Program program = generate(name, {.ranks = 4, .micro_batches = 6, .slices = 2});
    const Cost cost = growing_slices(program.shape);
    if (test::most_held(program, cost) > options.memory_limit) continue;
    EXPECT_LE(result.best->makespan, test::simulated(program, cost, Objective::Makespan));
  }
  EXPECT_THROW(static_cast<void>(search({.slices = 0})), InvalidArgument);
}

TEST(Search, RefusesContentionInOneSentence) {
  const auto contended = [](const Shape& shape) {
    Cost cost = Cost::unit(shape);
    cost.contention = true;
    return cost;
  };
  try {
    static_cast<void>(search({.cost = contended}));
    FAIL() << "contention is not searched";
  } catch (const InvalidArgument& refusal) {
    EXPECT_THAT(refusal.what(), testing::HasSubstr("simulate the result with it"));
  }
}

TEST(Search, FixesTheChunksThatAreAskedFor) {
  for (const int chunks : {1, 2, 3}) {
    SearchOptions options{.ranks = 3, .micro_batches = 6, .chunks = chunks, .budget = 100};
    const SearchResult result = search(options);
    expect_sound(options, result);
    for (const FoundSchedule& found : result.front) EXPECT_EQ(found.program.shape.chunks(), chunks);
  }
}

TEST(Search, FindsNothingWhereNothingFits) {
  const SearchResult result = search({.ranks = 3, .micro_batches = 4, .memory_limit = 0.1});
  EXPECT_FALSE(result.best.has_value());
  EXPECT_TRUE(result.front.empty());
}

TEST(Search, ReportsTheTimeCapThatCutIt) {
  const SearchResult result = search({.ranks = 8, .micro_batches = 32, .time_cap_seconds = 0.0});
  EXPECT_TRUE(result.cut_by_time);
  EXPECT_TRUE(result.best.has_value());
}

TEST(Search, RefusesWhatHasNoMeaning) {
  EXPECT_THROW(static_cast<void>(search({.ranks = 0})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(search({.chunks = 0})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(search({.budget = -1})), InvalidArgument);
}

/// What a search says of a schedule is what the simulation of its reduced program says.
void expect_simulated(const SearchOptions& options, const Costs& costs) {
  const SearchResult result = search(options);
  ASSERT_TRUE(result.best);
  for (const FoundSchedule& found : result.front) {
    const Program whole = costs.data_parallel > 1
                              ? insert_reductions(found.program, costs.data_parallel)
                              : insert_late_reductions(found.program);
    const Graph graph(whole);
    const Cost cost = cost_of(whole.shape, costs);
    const Report figures = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
    EXPECT_NEAR(found.makespan, figures.makespan, 1e-9) << found.generator;
    EXPECT_NEAR(found.step, figures.step, 1e-9) << found.generator;
    EXPECT_NEAR(found.span, figures.span, 1e-9) << found.generator;
  }
  EXPECT_LE(result.lower_bound, result.best->value(options.objective) * (1 + 1e-12));
}

Costs costs_of_sums(double bytes, int passes = 1) {
  return {.latency = {0.5},
          .bandwidth = {1},
          .data_parallel = 4,
          .gradient_bytes = {bytes},
          .accumulate = passes};
}

/// A search for the span, and one for steps of one pass and of three.
void expect_simulated_in_all_ways(SearchOptions options) {
  for (const double bytes : {3.0, 40.0})
    for (const int passes : {0, 1, 3}) {
      options.objective = passes == 0 ? Objective::Span : Objective::Makespan;
      const Costs costs = costs_of_sums(bytes, std::max(1, passes));
      set_costs(options, costs);
      expect_simulated(options, costs);
    }
}

TEST(Search, CountsTheSumsOverCopiesOfThePipeline) {
  expect_simulated_in_all_ways({.ranks = 3, .micro_batches = 6, .budget = 1500});
}

TEST(Search, CountsWhatReplicasGiveEachOtherBehindTheSums) {
  expect_simulated_in_all_ways(
      {.ranks = 4, .micro_batches = 8, .placement = Placement::mirrored(4), .budget = 500});
}

TEST(Search, CountsWhatReplicasOfOnePipelineGiveEachOther) {
  SearchOptions options{
      .ranks = 4, .micro_batches = 8, .placement = Placement::mirrored(4), .budget = 500};
  for (const double bytes : {3.0, 40.0})
    for (const Objective objective : {Objective::Makespan, Objective::Span}) {
      Costs costs = costs_of_sums(bytes);
      costs.data_parallel = 1;
      options.objective = objective;
      set_costs(options, costs);
      expect_simulated(options, costs);
    }
}

/// Where ranks are unlike, what one of them has to give lies in no step of its own.
TEST(Search, UnequalSpeeds_BoundTheReplicasSpan) {
  SearchOptions options{.ranks = 2, .micro_batches = 4, .objective = Objective::Span};
  options.placement = Placement::mirrored(2);
  options.budget = 500;
  options.cost = [](const Shape& shape) {
    Cost cost = Cost::unit(shape);
    cost.data_parallel = 8;
    cost.bytes_per_tick = 1;
    cost.gradient_bytes = {2, 2};
    cost.rank_speed = {1, 8};
    return cost;
  };
  const SearchResult result = search(options);
  ASSERT_TRUE(result.best);
  EXPECT_LE(result.lower_bound, result.best->span * (1 + 1e-12));
}

Costs costs_of_two(double bytes, int passes = 1) {
  return {.bandwidth = {1}, .data_parallel = 2, .gradient_bytes = {bytes}, .accumulate = passes};
}

FoundSchedule best_of_two(const Costs& costs) {
  SearchOptions options{.ranks = 2, .micro_batches = 4, .budget = 4000};
  set_costs(options, costs);
  return *search(options).best;
}

Report report_of_two(const Program& program, const Costs& costs) {
  const Program whole = insert_reductions(program, 2);
  const Graph graph(whole);
  const Cost cost = cost_of(whole.shape, costs);
  return report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
}

/// With long sums it pays to be done with one chunk early; without them it costs nothing.
TEST(Search, ChoosesAnotherScheduleWhereSumsAreLong) {
  const FoundSchedule with = best_of_two(costs_of_two(24)), without = best_of_two(costs_of_two(0));
  EXPECT_NE(compute_only(with.program), compute_only(without.program));
  EXPECT_LT(report_of_two(with.program, costs_of_two(24)).makespan,
            report_of_two(without.program, costs_of_two(24)).makespan);
}

/// The sums follow one pass of many: what they cost is little beside what each pass takes.
TEST(Search, MakesTheStepOfAllPassesSmall) {
  const Costs once = costs_of_two(24), often = costs_of_two(24, 1000);
  const FoundSchedule one = best_of_two(once), many = best_of_two(often);
  EXPECT_EQ(one.step, one.makespan);
  EXPECT_LT(many.step, report_of_two(one.program, often).step);
  EXPECT_GT(many.makespan, one.makespan);
  const double pass = best_of_two(costs_of_two(0)).makespan;
  EXPECT_NEAR(many.step, 999 * pass + many.makespan, 1e-6);
}

/// Here no generator has the best step, and who orders what is met by several times the pass with
/// the sums goes another way.
TEST(Search, OrdersByTheStepOfAllPasses) {
  for (const int passes : {2, 5}) {
    SearchOptions options{.ranks = 2, .micro_batches = 8, .placement = Placement::mirrored(2)};
    options.budget = 1500;
    set_costs(options, costs_of_two(8, passes));
    const SearchResult result = search(options);
    ASSERT_TRUE(result.best);
    EXPECT_TRUE(result.proven) << passes;
    EXPECT_EQ(result.best->step, passes == 2 ? 64 : 136);
    EXPECT_EQ(result.lower_bound, result.best->step);
  }
}

TEST(Search, ProvesTheStepOfAllPasses) {
  SearchOptions options{.ranks = 2, .micro_batches = 2, .chunks = 1, .budget = 100};
  set_costs(options, {.accumulate = 3});
  const SearchResult result = search(options);
  ASSERT_TRUE(result.best);
  EXPECT_TRUE(result.proven);
  EXPECT_EQ(result.best->step, 3 * result.best->makespan);
  EXPECT_EQ(result.lower_bound, result.best->step);
}

TEST(Search, CyclicPasses_HaveNoSpan) {
  SearchOptions options{.ranks = 2, .micro_batches = 2, .objective = Objective::Span};
  set_costs(options, {.accumulate = 2});
  EXPECT_THAT([&] { (void)search(options); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(
                  "accumulate is 2: between the passes of a step all ranks wait for each other")));
  const Shape shape{2, 2, 1, Placement::straight(2), {}, false};
  Cost cost = Cost::unit(shape);
  cost.passes = 2;
  EXPECT_THAT([&] { (void)solve_exact(shape, cost, {}); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("Cost::passes is 2")));
}

}  // namespace
}  // namespace millrace
