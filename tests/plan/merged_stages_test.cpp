// Stages put together: what the merged stage takes and holds is what its parts take and hold one
// after the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;

/// Five layers of different sizes.
Costs layers() {
  Costs file;
  file.ranks = file.stages = 5;
  file.forward = {1, 2, 3, 4, 5};
  file.input = {2, 1, 2, 1, 2};
  file.weight = {1, 1, 4, 1, 1};
  file.memory_forward = {10, 20, 30, 40, 50};
  file.memory_input_peak = {3, 9, 4, 6, 8};
  file.memory_input = {-1, -7, 2, -9, 5};
  file.memory_weight = {-9, -13, -32, -31, -55};
  file.memory_boundary = {1, 2, 3, 4, 5};
  return file;
}

TEST(MergedStages, TakeAndHoldWhatTheirPartsDo) {
  const Costs merged = merged_stages(layers(), {0, 2, 5}, 2);

  EXPECT_EQ(merged.ranks, 2);
  EXPECT_EQ(merged.stages, 2);
  EXPECT_THAT(merged.forward, ElementsAre(3, 12));
  EXPECT_THAT(merged.input, ElementsAre(3, 5));
  EXPECT_THAT(merged.weight, ElementsAre(2, 6));
  EXPECT_THAT(merged.memory_forward, ElementsAre(30, 120));
  EXPECT_THAT(merged.memory_input, ElementsAre(-8, -2));
  EXPECT_THAT(merged.memory_boundary, ElementsAre(1, 3));
  // Last one first: 9 of stage 1, then -7 + 3; 8 of stage 4, then 5 + 6, then 5 - 9 + 4.
  EXPECT_THAT(merged.memory_input_peak, ElementsAre(9, 11));
  EXPECT_THAT(stage_times(merged), ElementsAre(3 + 5, 12 + 11));
}

TEST(MergedStages, WithoutInputPeaks_HoldWhatTheirPartsLeave) {
  Costs file = layers();
  file.memory_input_peak.clear();
  // 5 of stage 4, then 5 - 9, then 5 - 9 + 2; together they leave -2.
  EXPECT_THAT(merged_stages(file, {0, 2, 5}, 2).memory_input_peak, ElementsAre(0, 5));
  EXPECT_TRUE(merged_stages(file, {0, 1, 2, 3, 4, 5}, 5).memory_input_peak.empty());
}

TEST(MergedStages, OnOneRank_HavePeakOfLayers) {
  const Costs file = layers(), merged = merged_stages(file, {0, 5}, 1);
  const auto peak = [](const Shape& shape, const Cost& cost, const char* schedule, int chunks) {
    ScheduleOptions options{.ranks = 1, .micro_batches = 3};
    if (chunks > 1) options.chunks = chunks;
    Program program = generate(schedule, options);
    EXPECT_EQ(program.shape.stages(), shape.stages());
    const Graph graph(program);
    return report(graph, cost, std::get<Timeline>(simulate(graph, cost))).ranks[0].peak_bytes;
  };
  const Shape one{.ranks = 1, .placement = Placement::straight(1)};
  const Shape five{.ranks = 1, .placement = Placement::loop(1, 5)};

  // GPipe of one rank: all forwards, then the backwards of a micro-batch layer by layer. I and W of
  // a layer run together there, so the merged peak, which keeps every W for the end, is not lower.
  EXPECT_GE(peak(one, cost_of(one, merged), "gpipe", 1), peak(five, cost_of(five, file), "bfs", 5));
  EXPECT_EQ(merged_stages(file, {0, 1, 2, 3, 4, 5}, 5).memory_input_peak, file.memory_input_peak);
}

TEST(MergedStages, RefuseBoundariesThatAreNoCut) {
  for (const std::vector<int>& boundaries :
       {std::vector<int>{}, {0}, {0, 3}, {1, 5}, {0, 2, 2, 5}, {0, 4, 3, 5}})
    EXPECT_THROW((void)merged_stages(layers(), boundaries, 1), InvalidArgument);
  EXPECT_THROW((void)merged_stages(layers(), {0, 1, 2, 5}, 2), InvalidArgument);
}

}  // namespace
}  // namespace millrace
