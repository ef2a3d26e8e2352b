// What a search may be asked for besides counts and costs: whole backwards, and with chunks also
// neighbours on one rank.
#include <set>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/every_order.hpp"

namespace millrace {
namespace {

bool has(const Program& program, Op op) {
  return std::ranges::any_of(program.ranks, [&](const std::vector<Action>& list) {
    return std::ranges::find(list, op, &Action::op) != list.end();
  });
}

TEST(FullBackward, Search_FindsNoSplitSchedule) {
  for (const int chunks : {1, 2}) {
    SearchOptions options{.ranks = 3, .micro_batches = 6, .chunks = chunks, .budget = 500};
    set_costs(options, {});
    options.full_backward = true;
    const SearchResult whole = search(options);
    for (const FoundSchedule& found : whole.front) {
      EXPECT_FALSE(has(found.program, Op::BackwardInput) || has(found.program, Op::BackwardWeight));
      EXPECT_TRUE(verify(found.program).empty()) << found.generator;
    }
    options.full_backward = false;
    EXPECT_LE(search(options).best->makespan, whole.best->makespan);
  }
}

TEST(FullBackward, TinyPipelines_ReachTheOptimumOfAllOrders) {
  for (int number = 0; number < 12; ++number) {
    test::SmallCase of = test::small_case(number, 2, 1 + number % 3, Placement::straight(2));
    of.fused = true;
    SearchOptions options = test::search_options(of, 500);
    options.full_backward = true;
    const SearchResult found = search(options);
    const double best = test::brute_force(of);
    ASSERT_EQ(found.best.has_value(), best < std::numeric_limits<double>::infinity()) << number;
    if (!found.best) continue;
    EXPECT_EQ(found.best->value(of.objective), best) << number;
    EXPECT_TRUE(found.proven) << number;
  }
}

TEST(Chunks, OfASearch_CountThoseOfBothCopies) {
  const auto timed = [](int chunks, bool bidirectional) {
    SearchOptions options{.ranks = 4, .micro_batches = 8, .chunks = chunks, .budget = 0};
    options.bidirectional = bidirectional;
    std::set<std::string> titles;
    options.progress = [&](const SearchProgress& progress) { titles.insert(progress.at); };
    static_cast<void>(search(options));
    std::vector<int> found;
    for (const char* name : {"chimera", "dualpipe", "bitpipe"})
      found.push_back(static_cast<int>(titles.count(name)));
    return found;
  };
  EXPECT_EQ(timed(1, true), std::vector({0, 0, 0}));
  EXPECT_EQ(timed(2, true), std::vector({1, 1, 0}));
  EXPECT_EQ(timed(4, true), std::vector({0, 0, 1}));
  EXPECT_EQ(timed(2, false), std::vector({0, 0, 0}));
}

TEST(Catalogue, Replicas_AreThoseOfThePrograms) {
  for (const ScheduleEntry& entry : schedules()) {
    ScheduleOptions options{.ranks = 4, .micro_batches = 12};
    EXPECT_EQ(generate(entry.name, options).shape.replicas(), entry.replicas) << entry.name;
  }
}

TEST(Neighbours, Search_FindsThemWhereMessagesAreSlow) {
  SearchOptions options{
      .ranks = 4, .micro_batches = 8, .chunks = 3, .memory_limit = 4, .budget = 200};
  set_costs(options, {.latency = {1}});
  int neighbours = 0;
  const SearchResult result = search(options);
  ASSERT_TRUE(result.best);
  for (const FoundSchedule& found : result.front) {
    const Shape& shape = found.program.shape;
    EXPECT_EQ(shape.chunks(), 3);
    EXPECT_TRUE(verify(found.program).empty());
    EXPECT_LE(found.peak_memory, 4);
    neighbours += shape.rank(Replica{0}, Stage{0}) == shape.rank(Replica{0}, Stage{1}) ? 1 : 0;
  }
  EXPECT_GT(neighbours, 0);
}

TEST(Neighbours, CutCosts_AreNoWorseThanFullStages) {
  // Six given stages on three ranks: what 1f1b takes with two of them together, search -v 2 has.
  Costs file{.forward = {1, 3, 2, 2, 1, 4},
             .input = {2, 3, 1, 2, 2, 3},
             .weight = {1, 1, 2, 2, 1, 2},
             .memory_forward = {1, 1, 1, 1, 1, 1},
             .memory_input = {0, 0, 0, 0, 0, 0},
             .memory_weight = {-1, -1, -1, -1, -1, -1},
             .ranks = 3,
             .stages = 6};
  const Costs costs = over(file, "file", {});
  for (const double limit : {2.0, 4.0, 6.0}) {
    SearchOptions full{
        .ranks = 3, .micro_batches = 6, .chunks = 1, .memory_limit = limit, .budget = 0};
    set_costs(full, costs);
    SearchOptions cut = full;
    cut.chunks = 2;
    const SearchResult one = search(full), two = search(cut);
    ASSERT_TRUE(one.best && two.best);
    EXPECT_LE(two.best->makespan, one.best->makespan) << limit;
  }
}

}  // namespace
}  // namespace millrace
