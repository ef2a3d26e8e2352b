// The shape that lists of actions imply, and lists from text: what a program made by hand needs.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

std::vector<std::vector<Action>> lists_of(const std::vector<std::string>& texts) {
  std::vector<std::vector<Action>> lists;
  for (const std::string& text : texts) lists.push_back(parse_actions(text));
  return lists;
}

std::string shape_refusal(const std::vector<std::string>& texts) {
  try {
    static_cast<void>(implied_shape(lists_of(texts)));
  } catch (const InvalidArgument& refusal) {
    return refusal.what();
  }
  return "";
}

TEST(ImpliedShape, IsTheShapeOfEverySchedule) {
  for (const ScheduleEntry& entry : schedules()) {
    const Program program = generate(entry.name, testing_plan::fitting(entry));
    EXPECT_EQ(implied_shape(program.ranks), program.shape) << entry.name;
  }
}

TEST(ImpliedShape, RefusesListsThatAreNoProgram) {
  EXPECT_EQ(shape_refusal({}), "there is no action; a program has a list of actions per rank");
  EXPECT_EQ(shape_refusal({"0F0", "0B0"}),
            "stage 0 is on rank 0 and, with 0B0, on rank 1; a stage is on one rank");
  EXPECT_EQ(shape_refusal({"0F0", "2F0"}),
            "stage 1 does not occur, but of its model there are 3 stages");
  EXPECT_EQ(shape_refusal({"0F0 0'F0"}), "micro-batch 0 is of several replicas; it is of one");
}

TEST(ImpliedShape, IsNotLedIntoTablesByLargeNumbers) {
  for (const char* text :
       {"0F2000000000", "2000000000F0", "0F0.2000000000", "2000000000F2000000000.2000000000"})
    EXPECT_NE(shape_refusal({text}).find("there are only 1 actions"), std::string::npos) << text;
}

TEST(ParseActions, ReadsWhatAPlanFileWrites) {
  for (const char* text :
       {"0F0 0F1+0B0 0'F2.1", "3SEND_F7@2", "", "1I0 1W0 1R0 1REDUCE_GRAD 1STEP"}) {
    std::string written;
    for (const Action& action : parse_actions(text))
      written += to_string(action) + (action.with_next ? "+" : " ");
    EXPECT_EQ(written.substr(0, written.empty() ? 0 : written.size() - 1), text);
  }
  EXPECT_EQ(parse_actions("  0F0\n\t0B0 "), parse_actions("0F0 0B0"));
}

TEST(ParseActions, NamesTheActionThatIsNone) {
  const auto refusal = [](const char* text) -> std::string {
    try {
      return std::to_string(parse_actions(text).size()) + " actions";
    } catch (const InvalidArgument& fault) {
      return fault.what();
    }
  };
  EXPECT_TRUE(refusal("0F0 0X1").starts_with("action 1, '0X1': unknown action 'X'; known are"));
  EXPECT_EQ(refusal("0F0+"), "the text ends in '+'; the other half of the pair is missing");
  EXPECT_EQ(refusal("0F0++0B0"), "action 1, '': expected a stage number, found the end");
}

}  // namespace
}  // namespace millrace
