// Cost files: round trip, and every fault with its place.
#include "millrace/scheduler/plan/cost_file.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;

CostFile two_stages() {
  CostFile file;
  file.ranks = 2;
  file.stages = 2;
  file.cost.forward = {1.5, 0.1};
  file.cost.backward_input = {1, 2};
  file.cost.backward_weight = {3, 1.0 / 3};
  file.cost.backward = {4, 2.25};
  file.cost.latency = 0.6;
  file.cost.after_passes = 0.25;
  file.cost.memory_forward = {100, 200};
  file.cost.memory_input = {-10, -20};
  file.cost.memory_weight = {-90, -180};
  file.cost.gradient_bytes = {1000, 3000};
  return file;
}

std::string complaint(const std::string& text) {
  const ParsedCosts parsed = read_costs(text);
  EXPECT_FALSE(parsed.costs.has_value());
  return parsed.diagnostics.empty() ? "no fault" : to_string(parsed.diagnostics.front());
}

TEST(CostFile, ComesBackAsItWasWritten) {
  const CostFile file = two_stages();
  const ParsedCosts parsed = read_costs(write_costs(file));

  ASSERT_TRUE(parsed.costs.has_value()) << to_string(parsed.diagnostics.front());
  EXPECT_EQ(parsed.costs->ranks, 2);
  EXPECT_EQ(parsed.costs->stages, 2);
  EXPECT_EQ(parsed.costs->unit, "s");
  EXPECT_EQ(parsed.costs->cost.forward, file.cost.forward);
  EXPECT_EQ(parsed.costs->cost.backward_input, file.cost.backward_input);
  EXPECT_EQ(parsed.costs->cost.backward_weight, file.cost.backward_weight);
  EXPECT_EQ(parsed.costs->cost.backward, file.cost.backward);
  EXPECT_EQ(parsed.costs->cost.latency, 0.6);
  EXPECT_EQ(parsed.costs->cost.after_passes, 0.25);
  EXPECT_EQ(parsed.costs->cost.memory_input, file.cost.memory_input);
  EXPECT_EQ(parsed.costs->cost.gradient_bytes, file.cost.gradient_bytes);
  EXPECT_TRUE(parsed.costs->cost.recompute.empty());
}

TEST(CostFile, SaysWhereAndWhatIsWrong) {
  const std::string good = write_costs(two_stages());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };

  EXPECT_THAT(complaint("{"), HasSubstr("this is not JSON"));
  EXPECT_THAT(complaint("{\"latency\": 2386e27040502}"),
              HasSubstr("1:1: a number in the file is too large"));
  EXPECT_THAT(complaint("[]"), HasSubstr("a cost file is a JSON object"));
  EXPECT_THAT(complaint(with("millrace_costs", "costs")),
              HasSubstr("the field 'millrace_costs' is missing"));
  EXPECT_THAT(complaint(with("\"latency\"", "\"latancy\"")), HasSubstr("'latancy' is unknown"));
  EXPECT_THAT(complaint(with("\"ranks\": 2", "\"ranks\": 3")),
              HasSubstr("expected a list of 3 numbers, found 2"));
  EXPECT_THAT(complaint(with("\"ranks\": 2", "\"ranks\": 0")),
              HasSubstr("4:11: expected a whole number from 1 to 1048576, found 0"));
  EXPECT_THAT(complaint(with("\"chunks\": 1", "\"chunks\": 1000000")), HasSubstr("is at most"));
  EXPECT_THAT(complaint(with("1.5", "-1.5")), HasSubstr("a number of at least 0, found -1.5"));
  EXPECT_THAT(complaint(with("1.5", "\"fast\"")), HasSubstr("found \"fast\""));
  EXPECT_THAT(complaint(with("3000", "-3000")), HasSubstr("a number of at least 0, found -3000"));
}

TEST(CostFile, OfBracketsAlone_IsRefusedBeforeItIsBuilt) {
  EXPECT_EQ(complaint(std::string(1U << 20U, '[')),
            "1:65: lists and objects are nested more than 64 deep");
  EXPECT_THAT(complaint(std::string(64, '[') + std::string(64, ']')), HasSubstr("JSON object"));
  EXPECT_THAT(complaint("[\"" + std::string(65, '[') + "\\\"[\"]"), HasSubstr("JSON object"));
}

TEST(CostFile, InexpressibleCosts_AreRejected) {
  CostFile file = two_stages();
  file.cost.rank_speed = {1, 2};
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
  file = two_stages();
  file.cost.forward.pop_back();
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
  file = two_stages();
  file.cost.cores = 2;
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
  file = two_stages();
  file.stages = 3;
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
}

TEST(CostFile, SplitAndJoined_IsUnchanged) {
  const CostFile whole = two_stages();
  for (const int chunks : {1, 2, 3}) {
    CostFile parts = whole;
    parts.cost = costs_for(whole, {.ranks = 2, .placement = Placement::loop(2, chunks)});
    parts.stages = 2 * chunks;
    const Cost again = costs_for(parts, {.ranks = 2, .placement = Placement::straight(2)});
    for (const auto list : {&Cost::forward, &Cost::backward_input, &Cost::backward}) {
      ASSERT_EQ((parts.cost.*list).size(), 2U * static_cast<unsigned>(chunks));
      for (std::size_t stage = 0; stage < 2; ++stage)
        EXPECT_DOUBLE_EQ((again.*list)[stage] / again.ticks_per_unit,
                         (whole.cost.*list)[stage] / whole.cost.ticks_per_unit);
    }
    for (std::size_t stage = 0; stage < 2; ++stage)
      EXPECT_DOUBLE_EQ(again.memory_forward[stage], whole.cost.memory_forward[stage]);
    EXPECT_DOUBLE_EQ(again.latency / again.ticks_per_unit, whole.cost.latency);
    EXPECT_DOUBLE_EQ(again.after_passes / again.ticks_per_unit, whole.cost.after_passes);
  }
}

TEST(CostFile, OfOneSliceIsSharedByTheSlices) {
  const CostFile whole = two_stages();
  const Cost cut = costs_for(whole, {.ranks = 2, .slices = 4, .placement = Placement::straight(2)});

  EXPECT_NO_THROW(cut.require_fits({.ranks = 2, .slices = 4, .placement = Placement::straight(2)}));
  EXPECT_DOUBLE_EQ(
      (cut.forward[0] + cut.forward[1] + cut.forward[2] + cut.forward[3]) / cut.ticks_per_unit,
      whole.cost.forward[0]);
}

TEST(CostFile, JoinedStages_AddInputPeaksLaterFirst) {
  CostFile file = two_stages();
  file.ranks = 1;
  file.cost.memory_input_peak = {5, 7};

  const Cost one = costs_for(file, {.ranks = 1, .placement = Placement::straight(1)});

  EXPECT_EQ(one.memory_input_peak.at(0), std::max(7, -20 + 5));
  EXPECT_EQ(one.memory_input.at(0), -30);
  EXPECT_EQ(one.forward.at(0), 1.5 + 0.1);
}

TEST(CostFile, IsOfItsRanks) {
  const Shape other{.ranks = 4, .placement = Placement::straight(4)};
  EXPECT_THROW((void)costs_for(two_stages(), other), InvalidArgument);
}

}  // namespace
}  // namespace millrace
