// Costs of a model as people say them: what a stage, a chunk and a slice of it take, and what
// cannot be said.
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/search.hpp"

namespace millrace {
namespace {

const Shape kTwoChunks{.ranks = 2, .micro_batches = 4, .placement = Placement::loop(2, 2)};

Costs two_unit_stages() {
  const Shape shape{.ranks = 2, .placement = Placement::straight(2)};
  return costs_of_stages(shape, Cost::unit(shape));
}

TEST(Costs, Default_IsFullStagesOfOne) {
  const Cost ours = cost_of(kTwoChunks, {}), unit = Cost::unit(kTwoChunks);
  EXPECT_EQ(ours.ticks_per_unit, unit.ticks_per_unit);
  EXPECT_EQ(ours.forward, unit.forward);
  EXPECT_EQ(ours.backward_weight, unit.backward_weight);
  EXPECT_EQ(ours.memory_forward, unit.memory_forward);
  EXPECT_EQ(ours.memory_weight, unit.memory_weight);
}

TEST(Costs, Decimals_BecomeWholeTicks) {
  const Cost cost = cost_of(kTwoChunks, {.forward = {0.1, 0.25}, .latency = {0.005}});
  EXPECT_EQ(cost.ticks_per_unit, 2000);  // thousandths, of two chunks
  EXPECT_EQ(cost.forward, (std::vector<double>{100, 100, 250, 250}));
  EXPECT_EQ(cost.latency, 10);
}

TEST(Costs, InvalidMember_IsNamed) {
  const auto refusal = [](const Costs& costs) -> std::string {
    try {
      return std::to_string(cost_of(kTwoChunks, costs).forward.size());
    } catch (const InvalidArgument& fault) {
      return fault.what();
    }
  };
  EXPECT_EQ(refusal({.forward = {1, 2, 3}}),
            "forward has 3 values; allowed are 1, p = 2 or one per stage, 4");
  EXPECT_EQ(refusal({.input = {-1}}), "input holds -1; expected numbers from 0 to 1e+15");
  EXPECT_EQ(refusal({.message_bytes = {1}}),
            "message_bytes is given without bandwidth; they go together");
  const auto file = std::make_shared<const Costs>(two_unit_stages());
  EXPECT_EQ(refusal({.weight = {1}, .file = file, .file_name = "a.json"}),
            "weight was given, but costs a.json has it too; leave one of them out");
}

TEST(Costs, FullStageGradients_AreSplitByChunk) {
  const Costs costs{.bandwidth = {4}, .data_parallel = 4, .gradient_bytes = {8, 12}};
  const Cost cost = cost_of(kTwoChunks, costs);
  EXPECT_EQ(cost.data_parallel, 4);
  EXPECT_EQ(cost.gradient_bytes, (std::vector<double>{4, 4, 6, 6}));
  // 1.5 times 4 bytes at 4 bytes per unit, which is 2 ticks.
  EXPECT_EQ(cost.sum_transfer(Stage{0}, Rank{0}, 2), 3);
}

TEST(Costs, RefuseGradientsThatNobodyAdds) {
  const auto refusal = [](const Costs& costs, const Shape& shape = kTwoChunks) -> std::string {
    try {
      return std::to_string(cost_of(shape, costs).data_parallel);
    } catch (const InvalidArgument& fault) {
      return fault.what();
    }
  };
  EXPECT_EQ(refusal({.data_parallel = 2}), "2");
  EXPECT_EQ(refusal({.data_parallel = 0}), "data_parallel is 0; it is at least 1");
  EXPECT_EQ(
      refusal({.bandwidth = {1}, .gradient_bytes = {1}}),
      "gradient_bytes is given without data_parallel and without tree_of_sums; only these add "
      "gradients of several replicas, or keep sums");
  EXPECT_EQ(refusal({.bandwidth = {1}, .data_parallel = 2}),
            "bandwidth is given without gradient_bytes; they go together");
  EXPECT_EQ(refusal({.data_parallel = 2, .gradient_bytes = {-1}}),
            "gradient_bytes holds -1; expected numbers from 0 to 1e+15");
  const Shape mirrored{.ranks = 2,
                       .micro_batches = 2,
                       .placement = Placement::mirrored(2),
                       .replica_of = {Replica{0}, Replica{1}}};
  EXPECT_EQ(refusal({.data_parallel = 2}, mirrored), "2");
  EXPECT_EQ(refusal({.tree_of_sums = true}, mirrored),
            "tree_of_sums needs one replica of every stage; this pipeline has 2");
}

TEST(Costs, TakeGradientsFromAFileOrBesideOne) {
  const Costs without = two_unit_stages();
  Costs with = without;
  with.gradient_bytes = {6, 8};
  const auto shared = [](const Costs& file) { return std::make_shared<const Costs>(file); };
  const Costs filed{
      .bandwidth = {2}, .data_parallel = 2, .file = shared(with), .file_name = "a.json"};
  EXPECT_EQ(cost_of(kTwoChunks, filed).gradient_bytes, (std::vector<double>{3, 3, 4, 4}));
  Costs beside = filed;
  beside.file = shared(without);
  beside.gradient_bytes = {2};
  EXPECT_EQ(cost_of(kTwoChunks, beside).gradient_bytes, (std::vector<double>{1, 1, 1, 1}));
  Costs twice = filed;
  twice.gradient_bytes = {2};
  EXPECT_THROW((void)cost_of(kTwoChunks, twice), InvalidArgument);
}

TEST(Costs, OfOnePartition_ExcludeBidirectionalSchedules) {
  SearchOptions full{.ranks = 2}, cut{.ranks = 2};
  set_costs(full, {.forward = {1, 2}});
  set_costs(cut, {.forward = {1, 2, 1, 2}});
  EXPECT_TRUE(full.bidirectional);
  EXPECT_FALSE(cut.bidirectional);
  EXPECT_THROW(set_costs(full, {.chunk_costs = true}), InvalidArgument);
}

}  // namespace
}  // namespace millrace
