// What waits while gradients are added by a tree: counted from the plan, against the definition of
// the tree, and as part of a rank's memory.
#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_plan::program;
using testing_plan::straight;

/// Nodes of the tree whose leaves have all come, and whose parent's have not, in [first, last).
int complete_nodes(const std::set<int>& come, int first, int last) {
  const auto begin = come.lower_bound(first), end = come.lower_bound(last);
  if (std::distance(begin, end) == last - first) return 1;
  if (last - first == 1) return 0;
  const int middle = first + (last - first + 1) / 2;
  return complete_nodes(come, first, middle) + complete_nodes(come, middle, last);
}

/// The most at a time, by definition: those that wait, and the one that comes.
int most_waiting(const std::vector<int>& order) {
  std::set<int> come;
  int most = 0;
  for (const int leaf : order) {
    most = std::max(
        most, (come.empty() ? 0 : complete_nodes(come, 0, static_cast<int>(order.size()))) + 1);
    come.insert(leaf);
  }
  return most;
}

/// One stage that runs its W in the order.
Program one_stage(const std::vector<int>& order) {
  Program result{straight(1, static_cast<int>(order.size())), {{}}, "one stage"};
  for (const Op op : {Op::Forward, Op::BackwardInput})
    for (int i = 0; i < static_cast<int>(order.size()); ++i)
      result.ranks[0].push_back({op, false, 0, 0, Stage{0}, MicroBatch{i}, {}});
  for (const int i : order)
    result.ranks[0].push_back({Op::BackwardWeight, false, 0, 0, Stage{0}, MicroBatch{i}, {}});
  return result;
}

int sums_of(const Program& program) {
  return partial_sums(program, {1}).of_stage.front();
}

TEST(PartialSums, Ascending_HoldLogarithmicStack) {
  for (int m = 1; m <= 130; ++m) {
    std::vector<int> order(static_cast<std::size_t>(m));
    std::iota(order.begin(), order.end(), 0);
    int log = 0;
    while ((1 << log) < m) ++log;
    EXPECT_EQ(sums_of(one_stage(order)), most_waiting(order)) << m;
    EXPECT_LE(sums_of(one_stage(order)), log + 1) << m;
    if (m == 1 << log) {
      EXPECT_EQ(sums_of(one_stage(order)), log + 1) << m;
    }
  }
}

TEST(PartialSums, OutOfOrderAreThoseOfTheDefinition) {
  int largest = 0;
  for (std::uint32_t number = 0; number < 200; ++number) {
    std::vector<int> order(2 + number % 31);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i-- > 1;) {
      const double u = random_uniform({.seed = 3, .purpose = Purpose::Test, .step = number},
                                      static_cast<std::uint32_t>(i));
      std::swap(order[i], order[static_cast<std::size_t>(u * static_cast<double>(i + 1))]);
    }
    EXPECT_EQ(sums_of(one_stage(order)), most_waiting(order)) << number;
    largest = std::max(largest, sums_of(one_stage(order)));
  }
  EXPECT_GT(largest, 8);  // far more than a stack
}

TEST(PartialSums, SumsOfARank_AreThoseOfItsStages) {
  const Shape shape{1, 2, 1, Placement::loop(1, 2), {}, false};
  // The sum of 1B0 waits while 0B0 and 0B1 are added.
  const Program two = program(shape, {"0F0 1F0 0F1 1F1 1B0 0B0 0B1 1B1"});
  const PartialSumCount count = partial_sums(two, {10, 100});
  EXPECT_THAT(count.of_stage, ElementsAre(2, 2));
  EXPECT_THAT(count.rank_bytes, ElementsAre(200));
  const Program ordered = program(shape, {"0F0 1F0 0F1 1F1 1B0 1B1 0B0 0B1"});
  EXPECT_THAT(partial_sums(ordered, {10, 100}).rank_bytes, ElementsAre(200));
  EXPECT_THAT(partial_sums(two, {150, 100}).rank_bytes, ElementsAre(100 + 2 * 150));
}

TEST(PartialSums, OfSlicesWaitWhereAnotherMicroBatchInterrupts) {
  const Shape shape{1, 2, 2, Placement::straight(1), {}, false};
  const Program plain = program(shape, {"0F0 0F0.1 0F1 0F1.1 0B0.1 0B0 0B1.1 0B1"});
  const Program mixed = program(shape, {"0F0 0F0.1 0F1 0F1.1 0B0.1 0B1.1 0B0 0B1"});
  EXPECT_EQ(partial_sums(plain, {1}).of_stage.front(), 2);
  // 1 is interrupted by 0, whose sum then waits: that of 0 on its way, and 1's slice.
  EXPECT_EQ(partial_sums(mixed, {1}).of_stage.front(), 2);
  const Program thrice{{1, 3, 2, Placement::straight(1), {}, false}, {}, ""};
  Program three =
      program(thrice.shape, {"0F0 0F0.1 0F1 0F1.1 0F2 0F2.1 0B0.1 0B1.1 0B2.1 0B0 0B1 0B2"});
  EXPECT_EQ(partial_sums(three, {1}).of_stage.front(), 3);
}

TEST(PartialSums, OfSeveralPassesAreThoseOfOneTree) {
  const Program four = generate("1f1b", {.ranks = 2, .micro_batches = 4});
  const Program eight = generate("1f1b", {.ranks = 2, .micro_batches = 8});
  EXPECT_EQ(partial_sums(four, {1, 1}, 2).of_stage, partial_sums(eight, {1, 1}).of_stage);
  EXPECT_THAT(partial_sums(four, {1, 1}, 4).of_stage, ElementsAre(5, 5));
  const Program forward = generate("forward", {.ranks = 2, .micro_batches = 4});
  EXPECT_THAT(partial_sums(forward, {1, 1}).of_stage, ElementsAre(0, 0));
}

TEST(PartialSums, CountAsMemoryOfTheirRank) {
  const Program one = program(straight(1, 4), {"0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3"});
  Cost cost = Cost::unit(one.shape);
  cost.memory_forward = {10};
  cost.memory_input = {0};
  cost.memory_weight = {-10};
  cost.gradient_bytes = {100};
  const Graph graph(one);
  const auto run = std::get<Timeline>(simulate(graph, cost));
  EXPECT_EQ(report(graph, cost, run).ranks[0].peak_bytes, 10);
  cost.tree_of_sums = true;
  // Of the last two that wait and its own, when the activation has gone.
  EXPECT_EQ(report(graph, cost, run).ranks[0].peak_bytes, 300);
  const auto curve = memory_over_time(graph, cost, run)[0];
  EXPECT_EQ(curve.back().bytes, 0);
  double highest = 0;
  for (const MemoryStep& step : curve) highest = std::max(highest, step.bytes);
  EXPECT_EQ(highest, 300);
  // A large activation is there together with those that wait alone.
  cost.memory_forward = {150};
  cost.memory_weight = {-150};
  EXPECT_EQ(report(graph, cost, run).ranks[0].peak_bytes, 350);
}

TEST(PartialSums, EverySchedule_CountsThemAsMemory) {
  for (const char* name : {"1f1b", "gpipe-lifo", "zb-h1", "interleaved", "zb-v", "seq-1f1b"}) {
    const Program schedule = generate(name, {.ranks = 3, .micro_batches = 9});
    Cost cost = Cost::unit(schedule.shape);
    const std::vector<double> none(static_cast<std::size_t>(schedule.shape.stages()), 0);
    cost.memory_forward = cost.memory_input = cost.memory_weight = none;
    cost.tree_of_sums = true;
    std::vector<std::size_t> bytes;
    for (std::size_t s = 0; s < none.size(); ++s) bytes.push_back(100 + 7 * s);
    cost.gradient_bytes.assign(bytes.begin(), bytes.end());
    const Graph graph(schedule);
    const Report figures = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
    const PartialSumCount count = partial_sums(schedule, bytes);
    for (std::size_t r = 0; r < figures.ranks.size(); ++r)
      EXPECT_EQ(figures.ranks[r].peak_bytes, static_cast<double>(count.rank_bytes[r])) << name;
  }
}

TEST(PartialSums, AreRefusedWhereATreeHasNoMeaning) {
  const auto refusal = [](const Program& program, std::size_t stages, int passes) -> std::string {
    try {
      (void)partial_sums(program, std::vector<std::size_t>(stages, 1), passes);
    } catch (const InvalidArgument& refused) {
      return refused.what();
    }
    return "nothing was refused";
  };
  const Program two = generate("1f1b", {.ranks = 2, .micro_batches = 4});
  EXPECT_THAT(refusal(generate("chimera", {.ranks = 2, .micro_batches = 4}), 2, 1),
              HasSubstr("has one copy of each stage; the program has 2"));
  EXPECT_THAT(refusal(two, 3, 1), HasSubstr("of 3 stages; the program has 2"));
  EXPECT_THAT(refusal(two, 2, 0), HasSubstr("a step of 0 passes of 4 micro-batches"));
  EXPECT_THAT(refusal(two, 2, 1 << 30), HasSubstr("at most 2147483647 micro-batches in all"));
}

}  // namespace
}  // namespace millrace
