// A search that is stopped: nothing that was finished is lost, and everything that takes long asks.
// The predicates count; no test looks at a clock.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/search.hpp"

namespace millrace {

namespace {

/// Says stop from the `last`-th question on.
Stop after(int last, int& asked) {
  return [last, &asked] { return ++asked > last; };
}

TEST(StoppedSearch, IsNotWorseThanAFinishedCandidate) {
  double before = std::numeric_limits<double>::infinity();
  for (const int questions : {0, 1, 2, 3, 5, 9, 20, 60, 100, 101, 110, 140}) {
    int asked = 0;
    double told = std::numeric_limits<double>::infinity();
    SearchOptions options{.ranks = 4, .micro_batches = 9, .budget = 200};
    options.stop = after(questions, asked);
    options.progress = [&](const SearchProgress& progress) { told = progress.best; };

    const SearchResult result = search(options);

    ASSERT_TRUE(result.best.has_value()) << questions;
    EXPECT_LE(result.best->makespan, told) << questions;
    EXPECT_LE(result.best->makespan, before) << questions;
    EXPECT_GE(result.best->makespan, result.lower_bound) << questions;
    EXPECT_TRUE(result.cut_by_time || asked <= questions) << questions;
    before = result.best->makespan;
  }
}

TEST(StoppedSearch, KeepsWhatTheLocalSearchMetUntilThen) {
  const auto unequal = [](const Shape& shape) {
    Cost cost = Cost::of_full_stage(shape, 18, 17, 9, 1);
    for (std::size_t i = 0; i < cost.forward.size(); ++i) {
      cost.forward[i] *= 1 + 0.1 * static_cast<double>(i * 7 % 5);
      cost.backward_input[i] *= 1 + 0.1 * static_cast<double>(i * 3 % 4);
    }
    return cost;
  };
  SearchOptions options{.ranks = 5, .micro_batches = 24, .chunks = 1};
  options.memory_limit = 5;
  options.cost = unequal;
  bool locally = false;
  int asked_locally = 0;
  double seed = 0;
  options.progress = [&](const SearchProgress& progress) {
    locally = progress.at.rfind("local search", 0) == 0;
    if (locally && seed == 0) seed = progress.best;
  };
  options.stop = [&] { return locally && ++asked_locally > 20; };

  const SearchResult result = search(options);

  EXPECT_TRUE(result.cut_by_time);
  EXPECT_LT(result.best->makespan, seed);
}

TEST(StoppedSearch, TakesCandidatesByCost) {
  std::vector<std::string> order;
  SearchOptions options{.ranks = 4, .micro_batches = 8, .budget = 0};
  options.progress = [&](const SearchProgress& progress) {
    if (progress.candidates > 0) order.push_back(progress.at);
  };

  static_cast<void>(search(options));

  const auto place = [&](const std::string& name) {
    std::size_t at = 0;
    while (at < order.size() && order[at] != name) ++at;
    EXPECT_LT(at, order.size()) << name;
    return at;
  };
  EXPECT_EQ(place("gpipe"), 0U);
  EXPECT_LT(place("zb-h1"), place("interleaved v=2"));
  EXPECT_LT(place("interleaved v=2"), place("interleaved v=4"));
  EXPECT_LT(place("interleaved v=4"), place("1f1b-v"));
  EXPECT_LT(place("1f1b-v"), place("v-zb"));
}

TEST(Stop, IsAskedInsideEveryGenerator) {
  for (const ScheduleEntry& entry : schedules()) {
    int asked = 0;
    ScheduleOptions options{.ranks = 64, .micro_batches = 2048};
    options.stop = after(1, asked);

    EXPECT_THROW(static_cast<void>(generate(entry.name, options)), Stopped) << entry.name;
    EXPECT_EQ(asked, 2) << entry.name;
  }
}

TEST(Stop, IsAskedInProportionToTheWork) {
  const auto questions = [](const char* name, int micro_batches) {
    int asked = 0;
    ScheduleOptions options{.ranks = 16, .micro_batches = micro_batches, .memory_limit = 10};
    options.stop = after(1'000'000, asked);
    // With equal passes v-zb knows when to end.
    static_cast<void>(generate(name, options, {.input = {1.5}}));
    return asked;
  };

  EXPECT_GT(questions("v-zb", 64), 100);
  EXPECT_GT(questions("zb-auto", 4096), 8 * questions("zb-auto", 256) / 2);
}

TEST(Stop, EndsTheBoundAndTheExactSolver) {
  int asked = 0;
  const Shape wide{.ranks = 32, .micro_batches = 1024, .placement = Placement::straight(32)};
  const Shape small{.ranks = 4, .micro_batches = 6, .placement = Placement::straight(4)};
  const Cost cost = Cost::of_full_stage(small, 3, 5, 2, 1);

  EXPECT_THROW(static_cast<void>(
                   lower_bound(wide, Cost::unit(wide), Objective::Makespan, 20, after(0, asked))),
               Stopped);
  asked = 0;
  EXPECT_THROW(
      static_cast<void>(solve_exact(small, cost, {.memory_limit = 3, .stop = after(0, asked)})),
      Stopped);
  EXPECT_EQ(asked, 1);
}

TEST(VZb, SixtyFourRanks_HasNoBubble) {
  int asked = 0;
  ScheduleOptions options{.ranks = 64, .micro_batches = 512};
  options.stop = after(1'000'000, asked);

  const Program program = generate("v-zb", options);

  EXPECT_EQ(program.size(), std::size_t{64} * 512 * 6);
  EXPECT_LT(asked, 100);  // a few passes over its 196,608 actions, not thousands
}

TEST(VZb, Limit_EndsAtTheEnvelope) {
  int asked = 0;
  ScheduleOptions options{.ranks = 64, .micro_batches = 512, .memory_limit = 32};
  options.stop = after(1'000'000, asked);

  const Program program = generate("v-zb", options);

  EXPECT_EQ(program.size(), std::size_t{64} * 512 * 6);
  EXPECT_LT(asked, 1000);  // 15 of 505 blocks
}

TEST(VZb, FindsAtTheEnvelopeWhatTheWholeSearchFinds) {
  for (int p = 1; p <= 8; ++p)
    for (const int m : {2 * p, 2 * p + 3, 4 * p})
      for (int k = 1; k <= 2 * p; ++k) {
        ScheduleOptions options{.ranks = p, .micro_batches = m, .memory_limit = k / 2.0};
        // No envelope is known: every block is tried.
        const Costs whole{.input = {std::nextafter(1.0, 2.0)}};
        try {
          ASSERT_EQ(generate("v-zb", options), generate("v-zb", options, whole))
              << p << " " << m << " " << k;
        } catch (const InvalidArgument&) {
          EXPECT_THROW(static_cast<void>(generate("v-zb", options, whole)), InvalidArgument);
        }
      }
}

}  // namespace

}  // namespace millrace
