// Sizes that differ along the model: messages by boundary, and what a forward holds only while it
// runs.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/search_cases.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Timeline run(const Program& program, const Cost& cost) {
  return std::get<Timeline>(simulate(Graph(program), cost));
}

/// Latencies of the links of ranks in a row that take as long as messages of these bytes.
std::vector<double> latencies(const std::vector<double>& bytes, double bandwidth) {
  const std::size_t p = bytes.size() + 1;
  std::vector<double> all(p * p, 0);
  for (std::size_t b = 0; b < bytes.size(); ++b)
    all[b * p + b + 1] = all[(b + 1) * p + b] = bytes[b] / bandwidth;
  return all;
}

TEST(MessageBytes, ByBoundary_TakeAsLongAsTheirLinks) {
  const std::vector<double> bytes = {6, 2, 4};
  for (const char* name : {"1f1b", "gpipe", "zb-h1", "eager-1f1b"}) {
    const Program order = generate(name, {.ranks = 4, .micro_batches = 6});
    const Cost sized = cost_of(order.shape, {.bandwidth = {4}, .message_bytes = bytes});
    const Cost linked = cost_of(order.shape, {.latency = latencies(bytes, 4)});
    for (const Program& program : {order, insert_messages(order)}) {
      const Timeline a = run(program, sized), b = run(program, linked);
      for (std::size_t r = 0; r < 4; ++r)
        for (std::size_t i = 0; i < a.ranks[r].size(); ++i)
          ASSERT_NEAR(
              a.ranks[r][i].end / a.ticks_per_unit, b.ranks[r][i].end / b.ticks_per_unit, 1e-9)
              << name;
      EXPECT_EQ(critical_path(Graph(program), sized, a).size(),
                critical_path(Graph(program), linked, b).size());
    }
  }
}

TEST(MessageBytes, Search_TimesThemByBoundary) {
  const Costs costs{.bandwidth = {4}, .message_bytes = {6, 2, 4}};
  SearchOptions options{.ranks = 4, .micro_batches = 6, .budget = 300};
  set_costs(options, costs);
  const SearchResult result = search(options);
  for (const FoundSchedule& found : result.front) {
    const Cost cost = cost_of(found.program.shape, costs);
    EXPECT_NEAR(test::simulated(found.program, cost, Objective::Makespan), found.makespan, 1e-9);
    EXPECT_NEAR(test::simulated(found.program, cost, Objective::Span), found.span, 1e-9);
  }
}

TEST(MessageBytes, OtherNumbersOfStages_TakeTheirBoundaries) {
  const auto bytes = [](int chunks, const std::vector<double>& list) {
    const Shape shape{.ranks = 3, .micro_batches = 4, .placement = Placement::loop(3, chunks)};
    return cost_of(shape, {.bandwidth = {1}, .message_bytes = list}).boundary_bytes;
  };
  EXPECT_THAT(bytes(1, {5, 7}), ElementsAre(5, 7));
  EXPECT_THAT(bytes(2, {5, 7}), ElementsAre(5, 5, 7, 7, 7));
  EXPECT_THAT(bytes(2, {1, 2, 3, 4, 5}), ElementsAre(1, 2, 3, 4, 5));
  try {
    static_cast<void>(bytes(2, {1, 2, 3}));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("allowed are 1 or one per boundary, p - 1 = 2 or 5"));
  }
}

Costs four_stages() {
  return {.forward = {1, 1, 1, 1},
          .input = {1, 1, 1, 1},
          .weight = {1, 1, 1, 1},
          .memory_forward = {4, 5, 6, 7},
          .memory_forward_peak = {9, 5, 6, 10},
          .memory_input = {0, 0, 0, 0},
          .memory_weight = {-4, -5, -6, -7},
          .bandwidth = {8},
          .message_bytes = {3, 1, 2},
          .ranks = 2,
          .stages = 4};
}

TEST(ModelSizes, CostFile_KeepsAndMergesThem) {
  const Costs read = *read_costs(write_costs(four_stages())).costs;
  EXPECT_THAT(read.message_bytes, ElementsAre(3, 1, 2));
  EXPECT_THAT(read.memory_forward_peak, ElementsAre(9, 5, 6, 10));

  const Costs merged = merged_stages(read, {0, 1, 4}, 2);
  EXPECT_THAT(merged.message_bytes, ElementsAre(3));
  EXPECT_THAT(merged.memory_forward_peak, ElementsAre(9, 5 + 6 + 10));
  const Shape shape{.ranks = 2, .micro_batches = 4, .placement = Placement::straight(2)};
  const Cost cost = cost_of(shape, over(read, "file", {}));
  EXPECT_THAT(cost.boundary_bytes, ElementsAre(1));
  EXPECT_THAT(cost.memory_forward_peak, ElementsAre(9, 16));
}

TEST(ForwardPeak, CountsWhileAForwardRuns) {
  for (const char* name : {"1f1b", "zb-h1", "gpipe"})
    for (const bool recompute : {false, true}) {
      Program order = generate(name, {.ranks = 3, .micro_batches = 5});
      if (recompute) order = insert_recompute(order);
      Cost cost = Cost::unit(order.shape);
      cost.memory_forward = {4, 4, 4};
      cost.memory_forward_peak = {7, 9, 3};
      cost.memory_input = {0, 0, 0};
      cost.memory_weight = {-4, -4, -4};
      cost.memory_boundary = {1, 1, 1};
      const Graph graph(order);
      const Report figures = report(graph, cost, run(order, cost));
      for (std::size_t r = 0; r < 3; ++r) {
        double level = 0, peak = 0;
        for (const Action& action : order.ranks[r]) {
          const bool again = action.op == Op::Recompute;
          if (again || action.op == Op::Forward) {
            const double held = again ? 1 : 0;  // of this unit, before
            const double kept = recompute && !again ? 1 : 4;
            peak = std::max(peak, level - held + std::max(kept, cost.memory_forward_peak[r]));
            level += kept - held;
          }
          if (gives_weight_gradient(action.op)) level -= 4;
        }
        EXPECT_EQ(figures.ranks[r].peak_bytes, peak) << name << " rank " << r << recompute;
      }
    }
}

TEST(ForwardPeak, CountsInARecomputeAfterAHeldWeight) {
  const Program late =
      testing_plan::program(testing_plan::straight(1, 2), {"0F0 0F1 0R0 0I0 0R1 0I1 0W0 0W1"});
  Cost cost = Cost::unit(late.shape);
  cost.memory_forward = {4};
  cost.memory_forward_peak = {7};
  cost.memory_input = {0};
  cost.memory_weight = {-4};
  cost.memory_boundary = {1};
  EXPECT_EQ(report(Graph(late), cost, run(late, cost)).ranks[0].peak_bytes, 4 + 7);
}

TEST(ForwardPeak, Search_StaysWithinTheLimit) {
  for (const bool recompute : {false, true})
    for (const double limit : {14.0, 18.0, 24.0}) {
      Costs file = four_stages();
      file.memory_boundary = {1, 1, 1, 1};
      const Costs costs = over(file, "file", {});
      SearchOptions options{.ranks = 2,
                            .micro_batches = 4,
                            .memory_limit = limit,
                            .budget = 500,
                            .recompute = recompute};
      set_costs(options, costs);
      const SearchResult result = search(options);
      for (const FoundSchedule& found : result.front) {
        const Graph graph(found.program);
        const Cost cost = cost_of(found.program.shape, costs);
        double most = 0;
        for (const RankReport& rank : report(graph, cost, run(found.program, cost)).ranks)
          most = std::max(most, rank.peak_bytes);
        EXPECT_EQ(most, found.peak_memory);
        EXPECT_LE(most, limit);
      }
    }
}

}  // namespace
}  // namespace millrace
