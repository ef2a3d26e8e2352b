// Overlapped pairs: which there are, what they take by kind, and how the search weighs them.
// Oracles: the naive replay, and every order of tiny pipelines with every set of pairs.
#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/every_order.hpp"
#include "plan/random_order.hpp"
#include "support/naive_replay.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing_plan::program;
using testing_plan::straight;

constexpr std::array kOthers = {Op::Backward, Op::BackwardInput, Op::BackwardWeight, Op::Forward};

RandomKey key_of(int number) {
  return {.seed = 79, .purpose = Purpose::Test, .step = static_cast<std::uint64_t>(number)};
}

TEST(Pairs, OfEveryKind_MatchTheNaiveReplay) {
  int paired = 0, hung = 0;
  for (int number = 0; number < 300; ++number) {
    const RandomKey key = key_of(number);
    std::uint32_t draw = 0;
    const int ranks = 1 + number % 3;
    test::SmallCase drawn =
        test::small_case(3 * number + 1,
                         ranks,
                         4,
                         number % 2 == 0 ? Placement::vee(ranks) : Placement::straight(ranks));
    drawn.cost.rank_speed.clear();
    for (const Op other : kOthers)
      if (random_below(key, draw++, 4) > 0)
        drawn.cost.pair.set(Op::Forward, other, 1 + random_below(key, draw++, 12));
    Program order = test::RandomOrder(drawn.shape, drawn.cost, number).draw();
    for (auto& list : order.ranks)
      for (std::size_t i = 0; i + 1 < list.size(); ++i)
        if (list[i].micro_batch != list[i + 1].micro_batch && random_below(key, draw++, 3) == 0) {
          list[i++].with_next = true;
          ++paired;
        }

    EXPECT_TRUE(verify(order).empty());
    const auto oracle = testing_plan::NaiveReplay(order, drawn.cost).run();
    const auto result = simulate(Graph(order), drawn.cost);
    ASSERT_EQ(std::holds_alternative<Timeline>(result), oracle.has_value()) << number;
    hung += oracle ? 0 : 1;
    if (!oracle) continue;
    EXPECT_EQ(std::get<Timeline>(result).ranks, *oracle) << number;
  }
  EXPECT_GT(paired, 500);
  EXPECT_LT(hung, 250);
}

TEST(Pairs, WithoutATime_RunInTurn) {
  const Program order = program(straight(1, 3), {"0F0 0F1+ 0F2 0I0 0I1+ 0W0 0W1 0I2 0W2"});
  Cost cost = Cost::unit(order.shape);
  const auto makespan = [&] { return test::simulated(order, cost, Objective::Makespan); };

  cost.pair.set(Op::Forward, Op::BackwardWeight, 1);
  EXPECT_EQ(makespan(), 9);
  cost.pair.set(Op::Forward, Op::Forward, 1.5);
  EXPECT_EQ(makespan(), 8.5);
}

TEST(Pairs, OfSlices_MayShareAMicroBatch) {
  Shape shape{
      .ranks = 1, .micro_batches = 1, .slices = 2, .placement = Placement({{Rank{0}, Rank{0}}})};
  const auto faults = [&](const char* list) { return verify(program(shape, {list})); };

  EXPECT_TRUE(faults("0F0 0F0.1+ 1F0 1F0.1 1B0.1 1B0+ 0B0.1 0B0").empty());
  EXPECT_FALSE(faults("0F0+ 0F0.1 1F0 1F0.1 1B0.1 1B0 0B0.1 0B0").empty());
  EXPECT_FALSE(faults("0F0 0F0.1 1F0 1F0.1+ 1B0.1 1B0 0B0.1 0B0").empty());
}

TEST(Pairs, BeyondTheCsv_AreRejectedByName) {
  const Program order = program(straight(1, 2), {"0F0 0F1+ 0W0 0B1"});
  std::string message;
  try {
    static_cast<void>(write_csv(order));
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("the pair at 0F1 on rank 0 is not one F with one B or I"));
  EXPECT_THAT(message, HasSubstr("a plan file (JSON) says it"));
  const auto diagnostics = read_csv("0F0,(0F1;0F2)OVERLAP_F_B").diagnostics;
  ASSERT_FALSE(diagnostics.empty());
  EXPECT_THAT(to_string(diagnostics.front()),
              HasSubstr("1:5: the pair is not one F with one B or I"));
}

TEST(Pairs, Costs_AreOfAFullStage) {
  const Shape shape{.ranks = 2, .micro_batches = 4, .placement = Placement::loop(2, 2)};
  const Costs costs{.pair_cost = 2.5, .pair_weight = 1.5};
  const auto time = [&](const Costs& of, Op other) {
    const Cost cost = cost_of(shape, of);
    return cost.pair.of(other, Op::Forward) / cost.ticks_per_unit;
  };

  EXPECT_EQ(time(costs, Op::Backward), 1.25);
  EXPECT_EQ(time(costs, Op::BackwardInput), 1.25);
  EXPECT_EQ(time(costs, Op::BackwardWeight), 0.75);
  EXPECT_LT(time(costs, Op::Forward), 0);
  EXPECT_EQ(time({.pair_cost = 3, .pair_input = 2}, Op::BackwardInput), 1);
}

TEST(Pairs, CostFile_HoldsTheirTimes) {
  Costs file{.forward = {4, 4},
             .input = {4, 4},
             .weight = {4, 4},
             .pair_cost = 9,
             .pair_forward = 5,
             .ranks = 2,
             .stages = 2};
  const Costs read = *read_costs(write_costs(file)).costs;
  EXPECT_EQ(read.pair_cost, 9);
  EXPECT_EQ(read.pair_forward, 5);

  const Shape shape{.ranks = 2, .micro_batches = 4, .placement = Placement::straight(2)};
  const Cost cost = cost_of(shape, over(read, "file", {.pair_cost = 7}));
  EXPECT_EQ(cost.pair.of(Op::Forward, Op::Backward), 7);
  EXPECT_EQ(cost.pair.of(Op::Forward, Op::Forward), 5);

  EXPECT_THROW(require_consistent(over(read, "file", {.atomic_pairs = true})), InvalidArgument);
}

TEST(Pairs, CostFileOfOtherRanks_KeepsItsTimes) {
  const std::vector<double> one(4, 1.0);
  const Costs file{
      .forward = one, .input = one, .weight = one, .pair_cost = 5, .ranks = 2, .stages = 4};
  for (const int ranks : {2, 4}) {
    const Shape shape{
        .ranks = ranks, .micro_batches = 4, .placement = Placement::loop(ranks, 4 / ranks)};
    EXPECT_EQ(cost_of(shape, over(file, "file", {})).pair.of(Op::Forward, Op::Backward), 2.5);
  }
}

/// An order with each set of pairs of neighbours of different micro-batches.
void add_paired(std::vector<Action> list, std::size_t from, std::vector<std::vector<Action>>& all) {
  for (std::size_t i = from; i + 1 < list.size(); ++i) {
    if (list[i].micro_batch == list[i + 1].micro_batch) continue;
    list[i].with_next = true;
    add_paired(list, i + 2, all);
    list[i].with_next = false;
  }
  all.push_back(std::move(list));
}

/// Smallest makespan over all orders, split or full, of two ranks at most, with all pairs.
double best_of_all(test::SmallCase of) {
  double best = std::numeric_limits<double>::infinity();
  for (const bool fused : {false, true}) {
    of.fused = fused;
    std::vector<std::vector<std::vector<Action>>> ranks;
    for (int r = 0; r < of.shape.ranks; ++r) {
      ranks.emplace_back();
      for (const auto& order : test::RankOrders(of, r).orders) add_paired(order, 0, ranks.back());
    }
    if (ranks.size() == 1) ranks.push_back({{}});
    for (const auto& first : ranks[0])
      for (const auto& second : ranks[1]) {
        Program program{of.shape, {first, second}, ""};
        program.ranks.resize(static_cast<std::size_t>(of.shape.ranks));
        const auto run = testing_plan::NaiveReplay(program, of.cost).run();
        if (!run) continue;
        double end = 0;
        for (const auto& list : *run) end = std::max(end, list.back().end);
        best = std::min(best, end);
      }
  }
  return best;
}

/// The longer of the two passes, of any stage: no pair takes less.
double at_once(const test::SmallCase& of, Op other) {
  double longest = 0;
  for (int s = 0; s < of.shape.stages(); ++s)
    for (const Op op : {Op::Forward, other})
      longest = std::max(
          longest, of.cost.ticks({.op = op, .stage = Stage{s}, .micro_batch = {}, .slice = {}}));
  return longest;
}

TEST(SearchPairs, TinyPipelines_ReachTheOptimumOfAllOrders) {
  int gained = 0, reached = 0;
  for (int number = 0; number < 24; ++number) {
    const RandomKey key = key_of(number);
    const int ranks = number % 4 == 0 ? 1 : 2;
    test::SmallCase of =
        test::small_case(2 * number + 1, ranks, ranks == 1 ? 3 : 2, Placement::straight(ranks));
    of.cost.rank_speed.clear();
    of.cost.link_latency.clear();
    of.objective = Objective::Makespan;
    of.memory_limit = std::numeric_limits<double>::infinity();
    const double in_turn = search(test::search_options(of, 2000)).best->makespan;
    std::uint32_t draw = 0;
    for (const Op other : kOthers)
      if (random_below(key, draw++, 3) > 0)
        of.cost.pair.set(Op::Forward, other, at_once(of, other) + random_below(key, draw++, 4));

    const double best = best_of_all(of);
    const SearchResult found = search(test::search_options(of, 5000));

    const double value = found.best->makespan;
    EXPECT_GE(value, best) << number;
    EXPECT_LE(value, 1.06 * best) << number;
    EXPECT_LE(found.lower_bound, best) << number;
    EXPECT_EQ(test::simulated(found.best->program, of.cost, Objective::Makespan), value) << number;
    gained += best < in_turn ? 1 : 0;
    reached += value == best ? 1 : 0;
  }
  EXPECT_GE(gained, 12);
  EXPECT_GE(reached, 23);
}

TEST(SearchPairs, Finds_AreWhatTheSimulationSays) {
  const Costs fine{.latency = {0.25}, .pair_cost = 2, .pair_weight = 1.5};
  const Costs fast{.forward = {2},
                   .input = {2},
                   .weight = {2},
                   .rank_speed = {2, 2, 2, 2},
                   .pair_cost = 5};  // 2.5 on these ranks
  for (const Costs& costs : {fine, fast})
    for (const auto& [objective, limit] : {std::pair(Objective::Makespan, 3.0),
                                           std::pair(Objective::Makespan, 5.0),
                                           std::pair(Objective::Span, 3.0),
                                           std::pair(Objective::Span, 5.0)}) {
      SearchOptions options{.ranks = 4,
                            .micro_batches = 8,
                            .objective = objective,
                            .memory_limit = limit,
                            .budget = 1500};
      set_costs(options, costs);
      const SearchResult result = search(options);
      ASSERT_TRUE(result.best);
      for (const FoundSchedule& found : result.front) {
        const Cost cost = cost_of(found.program.shape, costs);
        VerifyOptions rules;
        rules.cost = cost;
        rules.memory_limit = {limit};
        EXPECT_TRUE(verify(found.program, rules).empty());
        EXPECT_NEAR(
            test::simulated(found.program, cost, Objective::Makespan), found.makespan, 1e-9);
        EXPECT_NEAR(test::simulated(found.program, cost, Objective::Span), found.span, 1e-9);
        EXPECT_GE(found.value(objective), result.lower_bound);
      }
    }
}

TEST(SearchPairs, WithRecompute_StayWithinTheLimit) {
  const Costs costs{.pair_cost = 2, .pair_weight = 1.5};
  for (const double limit : {1.5, 2.0, 3.0}) {
    SearchOptions options{
        .ranks = 4, .micro_batches = 8, .memory_limit = limit, .budget = 1000, .recompute = true};
    set_costs(options, costs);
    const SearchResult result = search(options);
    for (const FoundSchedule& found : result.front) {
      const Cost cost = cost_of(found.program.shape, costs);
      EXPECT_TRUE(verify(found.program, {.memory_limit = {limit}, .cost = cost}).empty());
      EXPECT_NEAR(test::simulated(found.program, cost, Objective::Makespan), found.makespan, 1e-9);
    }
  }
}

TEST(SearchPairs, NoDearerThanInTurn_NothingChanges) {
  SearchOptions options{.ranks = 3, .micro_batches = 6, .budget = 300};
  set_costs(options, {});
  const SearchResult in_turn = search(options);
  set_costs(options, {.pair_cost = 3});
  EXPECT_LE(search(options).best->makespan, in_turn.best->makespan);
}

/// Of rank 0, whose work the bubble is counted against: `u` forwards and backwards alone.
double own_work(int p, int v, int m, double forward, double backward, double pair) {
  const int u = std::min(m * v, 2 * (p - 1) + (v - 1) * p + 1);
  return (u * (forward + backward) + (m * v - u) * pair) / v;
}

TEST(InterleavedPairs, BubbleAndPeak_HaveTheirClosedForms) {
  for (const int p : {1, 2, 3, 4, 8})
    for (const int v : {1, 2, 3, 4})
      for (const int m : {2 * p, 3 * p, 4 * p})
        for (const double pair : {2.0, 2.5, 3.0}) {
          const Program order =
              generate("interleaved-pairs", {.ranks = p, .micro_batches = m, .chunks = v});
          ASSERT_TRUE(verify(insert_messages(order), Transport::bounded(0)).empty());
          const Cost cost = cost_of(order.shape, {.pair_cost = pair});
          const Graph graph(order);
          const Report figures = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
          EXPECT_NEAR(
              figures.makespan - own_work(p, v, m, 1, 2, pair), (p - 1) * (2 * pair - 3) / v, 1e-9)
              << order.name << " " << pair;
          for (int r = 0; r < p; ++r)
            EXPECT_NEAR(
                figures.ranks[static_cast<std::size_t>(r)].peak_activation,
                std::min(double{1} * m, ((v - 1) * p + 2 * (p - 1 - r) + 2) / double{1} / v),
                1e-9);
        }
}

TEST(InterleavedPairs, ShortSteps_RunForAnyCounts) {
  for (int p = 1; p <= 5; ++p)
    for (int m = 1; m <= 2 * p + 1; ++m)
      for (int v = 1; v <= 3; ++v) {
        const Program order =
            generate("interleaved-pairs", {.ranks = p, .micro_batches = m, .chunks = v});
        EXPECT_TRUE(verify(order).empty()) << order.name;
        EXPECT_TRUE(std::holds_alternative<Timeline>(
            simulate(Graph(order), cost_of(order.shape, {.pair_cost = 2}))))
            << order.name;
      }
}

}  // namespace
}  // namespace millrace
