// Cost files: round trip, and every fault with its place.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;

Costs two_stages() {
  Costs file;
  file.ranks = 2;
  file.stages = 2;
  file.forward = {1.5, 0.1};
  file.input = {1, 2};
  file.weight = {3, 1.0 / 3};
  file.backward = {4, 2.25};
  file.latency = {0.6};
  file.after_passes = 0.25;
  file.memory_forward = {100, 200};
  file.memory_input = {-10, -20};
  file.memory_weight = {-90, -180};
  file.gradient_bytes = {1000, 3000};
  return file;
}

std::string complaint(const std::string& text) {
  const ParsedCosts parsed = read_costs(text);
  EXPECT_FALSE(parsed.costs.has_value());
  return parsed.diagnostics.empty() ? "no fault" : to_string(parsed.diagnostics.front());
}

TEST(CostFile, ComesBackAsItWasWritten) {
  const Costs file = two_stages();
  const ParsedCosts parsed = read_costs(write_costs(file));

  ASSERT_TRUE(parsed.costs.has_value()) << to_string(parsed.diagnostics.front());
  EXPECT_EQ(parsed.costs->ranks, 2);
  EXPECT_EQ(parsed.costs->stages, 2);
  EXPECT_EQ(parsed.costs->unit, "s");
  EXPECT_EQ(parsed.costs->forward, file.forward);
  EXPECT_EQ(parsed.costs->input, file.input);
  EXPECT_EQ(parsed.costs->weight, file.weight);
  EXPECT_EQ(parsed.costs->backward, file.backward);
  EXPECT_EQ(parsed.costs->latency, std::vector{0.6});
  EXPECT_EQ(parsed.costs->after_passes, 0.25);
  EXPECT_EQ(parsed.costs->memory_input, file.memory_input);
  EXPECT_EQ(parsed.costs->gradient_bytes, file.gradient_bytes);
  EXPECT_TRUE(parsed.costs->recompute.empty());
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

/// A row that the library does not have, as a new cost would add one.
constexpr CostMember kDummy{
    "dummy", &Costs::pair_cost, "A cost of tests", 0, CostMember::InFile::Number};

TEST(CostFile, NewRow_IsReadAndWritten) {
  std::vector<CostMember> members(cost_members().begin(), cost_members().end());
  std::erase_if(members, [](const CostMember& row) { return row.name == "pair_cost"; });
  members.push_back(kDummy);
  Costs file = two_stages();
  file.pair_cost = 2.5;

  const std::string text = write_costs(file, members);

  EXPECT_THAT(text, HasSubstr("\"dummy\": 2.5"));
  EXPECT_EQ(read_costs(text, members).costs->pair_cost, 2.5);
  EXPECT_THAT(complaint(text), HasSubstr("'dummy' is unknown"));
}

TEST(CostFile, NestedBrackets_AreRejectedEarly) {
  EXPECT_EQ(complaint(std::string(1U << 20U, '[')),
            "1:65: lists and objects are nested more than 64 deep");
  EXPECT_THAT(complaint(std::string(64, '[') + std::string(64, ']')), HasSubstr("JSON object"));
  EXPECT_THAT(complaint("[\"" + std::string(65, '[') + "\\\"[\"]"), HasSubstr("JSON object"));
}

TEST(CostFile, InexpressibleCosts_AreRejected) {
  Costs file = two_stages();
  file.rank_speed = {1, 2};
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
  file = two_stages();
  file.forward.pop_back();
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
  file = two_stages();
  file.cores = 2;
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
  file = two_stages();
  file.stages = 3;
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
}

TEST(CostFile, SplitAndJoined_IsUnchanged) {
  const Costs whole = two_stages();
  const Cost given = cost_of({.ranks = 2, .placement = Placement::straight(2)}, whole);
  for (const int chunks : {1, 2, 3}) {
    const Shape shape{.ranks = 2, .placement = Placement::loop(2, chunks)};
    const Cost cut = cost_of(shape, whole);
    const Cost again =
        cost_of({.ranks = 2, .placement = Placement::straight(2)}, costs_of_stages(shape, cut));
    const double units = cut.ticks_per_unit;
    for (const auto list : {&Cost::forward, &Cost::backward_input, &Cost::backward}) {
      ASSERT_EQ((cut.*list).size(), 2U * static_cast<unsigned>(chunks));
      for (std::size_t stage = 0; stage < 2; ++stage)
        EXPECT_DOUBLE_EQ((again.*list)[stage] / units, (given.*list)[stage]);
    }
    for (std::size_t stage = 0; stage < 2; ++stage)
      EXPECT_DOUBLE_EQ(again.memory_forward[stage], whole.memory_forward[stage]);
    EXPECT_DOUBLE_EQ(again.latency / units, 0.6);
    EXPECT_DOUBLE_EQ(again.after_passes / units, 0.25);
  }
}

TEST(CostFile, OfOneSliceIsSharedByTheSlices) {
  const Costs whole = two_stages();
  const Cost cut = cost_of({.ranks = 2, .slices = 4, .placement = Placement::straight(2)}, whole);

  EXPECT_NO_THROW(cut.require_fits({.ranks = 2, .slices = 4, .placement = Placement::straight(2)}));
  EXPECT_DOUBLE_EQ(
      (cut.forward[0] + cut.forward[1] + cut.forward[2] + cut.forward[3]) / cut.ticks_per_unit,
      whole.forward[0]);
}

TEST(CostFile, JoinedStages_AddInputPeaksLaterFirst) {
  Costs file = two_stages();
  file.ranks = 1;
  file.memory_input_peak = {5, 7};

  const Cost one = cost_of({.ranks = 1, .placement = Placement::straight(1)}, file);

  EXPECT_EQ(one.memory_input_peak.at(0), std::max(7, -20 + 5));
  EXPECT_EQ(one.memory_input.at(0), -30);
  EXPECT_EQ(one.forward.at(0), 1.5 + 0.1);
}

TEST(CostFile, IsOfItsRanks) {
  const Shape other{.ranks = 4, .placement = Placement::straight(4)};
  EXPECT_THROW((void)cost_of(other, two_stages()), InvalidArgument);
}

}  // namespace
}  // namespace millrace
