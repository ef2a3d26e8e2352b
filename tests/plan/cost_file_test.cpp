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
  file.cost.memory_forward = {100, 200};
  file.cost.memory_input = {-10, -20};
  file.cost.memory_weight = {-90, -180};
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
  EXPECT_EQ(parsed.costs->cost.memory_input, file.cost.memory_input);
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
}

TEST(CostFile, RefusesToWriteWhatTheFormatHasNoWordFor) {
  CostFile file = two_stages();
  file.cost.rank_speed = {1, 2};
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
  file = two_stages();
  file.cost.forward.pop_back();
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
  file = two_stages();
  file.stages = 3;
  EXPECT_THROW((void)write_costs(file), InvalidArgument);
}

}  // namespace
}  // namespace millrace
