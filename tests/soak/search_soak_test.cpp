// How far the exact solver carries: larger pipelines with two chunks per rank, unequal stages,
// ranks, links and limits. Prints how many are proven; the search meets every one that is.
#include <chrono>
#include <iostream>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/optimum.hpp"
#include "plan/search_cases.hpp"

namespace millrace {
namespace {

struct Tally {
  int cases = 0, proven = 0, missed = 0;
  double longest = 0;  // seconds
};

Placement loop_of_two(int ranks) {
  return Placement::loop(ranks, 2);
}

/// Solves every case with at most `states` states and searches it where that was a proof.
Tally solve_all(Placement (*placement)(int), int draws, std::int64_t states) {
  Tally tally;
  for (const test::SmallCase& of : test::larger_cases(placement, draws)) {
    if (of.fused) continue;
    const auto begin = std::chrono::steady_clock::now();
    const ExactResult exact = solve_exact(
        of.shape,
        of.cost,
        {.objective = of.objective, .memory_limit = of.memory_limit, .state_limit = states});
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    ++tally.cases;
    tally.longest = std::max(tally.longest, taken.count());
    if (!exact.proven) continue;
    ++tally.proven;
    const SearchResult found = search(test::search_options(of, 20'000));
    const bool met = found.best.has_value() == exact.program.has_value() &&
                     (!found.best || found.best->value(of.objective) <= exact.value);
    if (!met) ++tally.missed;
  }
  return tally;
}

void report(const char* name, const Tally& tally) {
  std::cout << name << ": " << tally.proven << " of " << tally.cases << " proven, longest "
            << tally.longest << " s, missed by the search: " << tally.missed << "\n";
}

TEST(SearchSoak, MeetsTheSolversProof) {
  for (const auto& [name, placement] :
       {std::pair{"V, 60,000 states", &Placement::vee}, {"loop, 60,000 states", &loop_of_two}}) {
    const Tally tally = solve_all(placement, 12, 60'000);
    report(name, tally);
    EXPECT_EQ(tally.missed, 0);
    EXPECT_GT(10 * tally.proven, 9 * tally.cases);
  }
}

TEST(SearchSoak, CountsWhatTheSolverProvesByDefault) {
  const Tally straight = solve_all(Placement::straight, 200, 2'000'000);
  report("one chunk, default states", straight);
  EXPECT_EQ(straight.proven, straight.cases);
  EXPECT_EQ(straight.missed, 0);
  report("V, default states", solve_all(Placement::vee, 4, 2'000'000));
}

}  // namespace
}  // namespace millrace
