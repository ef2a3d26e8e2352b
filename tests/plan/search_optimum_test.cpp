// The search against what is known about a case: the exact optimum wherever the solver proves one,
// and the published heuristics everywhere else. Prints how many cases were proven.
#include <iostream>
#include <memory>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/search_cases.hpp"

namespace millrace {
namespace {

using test::SmallCase;

/// States that the solver may store; what the search gives one of two shapes.
constexpr std::int64_t kStates = 60'000;

/// Number of cases that the solver proves; the search is checked against each of them.
int proven_and_met(const std::vector<SmallCase>& cases, int& total) {
  int proven = 0;
  for (const SmallCase& of : cases) {
    if (of.fused) continue;  // the search may split what the case keeps whole
    ++total;
    const ExactResult exact = solve_exact(
        of.shape,
        of.cost,
        {.objective = of.objective, .memory_limit = of.memory_limit, .state_limit = kStates});
    if (!exact.proven) continue;
    ++proven;
    const SearchResult found = search(test::search_options(of, 200));
    EXPECT_EQ(found.best.has_value(), exact.program.has_value());
    if (found.best) {
      EXPECT_LE(found.best->value(of.objective), exact.value)
          << of.shape.ranks << " ranks, " << of.shape.micro_batches << " micro-batches";
      if (of.shape.chunks() == 1) {
        EXPECT_EQ(found.best->value(of.objective), exact.value);
      }
    }
  }
  return proven;
}

TEST(SearchOptimum, IsReachedOnLargerProvenCases) {
  int total = 0;
  const int proven = proven_and_met(test::larger_cases(Placement::straight, 6), total);
  std::cout << "larger cases, one chunk: " << proven << " of " << total << " proven\n";
  RecordProperty("proven", proven);
  EXPECT_EQ(proven, total);
}

TEST(SearchOptimum, IsReachedWithTwoChunks) {
  int total = 0;
  std::vector<SmallCase> cases;
  for (const SmallCase& of : test::committed_cases())
    cases.push_back(test::small_case(static_cast<int>(2000 + cases.size()),
                                     of.shape.ranks,
                                     of.shape.micro_batches,
                                     Placement::vee(of.shape.ranks)));
  const int proven = proven_and_met(cases, total);
  std::cout << "committed counts, two chunks in a V: " << proven << " of " << total << " proven\n";
  RecordProperty("proven", proven);
  EXPECT_EQ(proven, total);
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

/// The case as the heuristics read it: each stage is the mean one.
ScheduleOptions told(const SmallCase& of) {
  ScheduleOptions options{.ranks = of.shape.ranks, .micro_batches = of.shape.micro_batches};
  if (of.memory_limit < std::numeric_limits<double>::infinity())
    options.memory_limit = of.memory_limit;
  return options;
}

Costs means(const SmallCase& of) {
  const int chunks = of.shape.chunks();
  return {.forward = {mean(of.cost.forward) * chunks},
          .input = {mean(of.cost.backward_input) * chunks},
          .weight = {mean(of.cost.backward_weight) * chunks},
          .memory_forward = {mean(of.cost.memory_forward) * chunks},
          .memory_input = {mean(of.cost.memory_input) * chunks},
          .memory_weight = {mean(of.cost.memory_weight) * chunks},
          .latency = {mean(of.cost.link_latency)}};
}

/// Number of heuristics that found an order within the limit; the search must not be above any.
int compared_with(const SmallCase& of, const SearchResult& result) {
  int compared = 0;
  for (const char* name : {"zb-auto", "zb-v-auto", "v-zb"}) try {
      const Program program = generate(name, told(of), means(of));
      if (program.shape.placement != of.shape.placement) continue;
      if (test::most_held(program, of.cost) > of.memory_limit) continue;
      ++compared;
      EXPECT_TRUE(result.best.has_value());
      if (result.best) {
        EXPECT_LE(result.best->value(of.objective), test::simulated(program, of.cost, of.objective))
            << name << " " << of.shape.ranks << " " << of.shape.micro_batches;
      }
    } catch (const InvalidArgument&) {
      continue;  // nothing found under this limit
    }
  return compared;
}

TEST(SearchOptimum, IsMissedLessThanByHeuristics) {
  std::vector<SmallCase> cases = test::committed_cases();
  for (auto* placement : {Placement::straight, Placement::vee}) {
    for (int number = 0; number < 6; ++number)
      cases.push_back(test::small_case(
          3000 + number, 5 + number % 4, 6 + 3 * number, placement(5 + number % 4)));
  }
  int compared = 0;
  for (const SmallCase& of : cases)
    compared += compared_with(of, search(test::search_options(of, 200)));
  EXPECT_GT(compared, 40);
}

TEST(SearchOptimum, FromAProgram_IsNotWorse) {
  const SearchOptions plain{.ranks = 3, .micro_batches = 4, .chunks = 1, .budget = 0};
  SearchOptions options = plain;
  const Program found = search({.ranks = 3, .micro_batches = 4, .chunks = 1}).best->program;
  Program mine = found;
  mine.name = "mine";
  options.from = std::make_shared<const Program>(insert_messages(mine));

  const SearchResult from = search(options);

  const Graph graph(mine);
  const Cost cost = Cost::unit(mine.shape);
  const auto own = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
  EXPECT_LE(from.best->makespan, own.makespan);
  EXPECT_GT(from.evaluations, search(plain).evaluations);
  options.micro_batches = 5;
  EXPECT_THROW((void)search(options), InvalidArgument);
  options.micro_batches = 4;
  options.from = std::make_shared<const Program>(insert_recompute(mine));
  EXPECT_THROW((void)search(options), InvalidArgument);
}

TEST(SearchOptimum, SlicesUnderLittleMemory_AreScheduled) {
  const SearchResult found = search({.ranks = 4,
                                     .micro_batches = 4,
                                     .chunks = 2,
                                     .slices = 8,
                                     .memory_limit = 1.2,
                                     .budget = 100});

  ASSERT_TRUE(found.best.has_value());
  EXPECT_LE(found.best->makespan, 12.1875);
  EXPECT_LE(test::most_held(found.best->program, Cost::unit(found.best->program.shape)), 1.1875);
}

}  // namespace
}  // namespace millrace
