// The plan file: its look, every fault with its exact place and words, and hostile input.
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "plan/text_cases.hpp"

namespace millrace {
namespace {

std::string plan_faults(std::string_view text) {
  const ParsedPlan read = read_plan(text);
  EXPECT_NE(read.plan.has_value(), !read.diagnostics.empty());
  return faults(read.diagnostics);
}

TEST(PlanFile, LooksLikeThis) {
  EXPECT_EQ(write_plan(rich_plan()),
            R"({
"millrace_plan": 1,
"name": "rich \"plan\"",
"shape": {"forward_only":false,"micro_batches":2,"placement":[[0,1],[1,0]],"ranks":2,"replica_of":[0,1],"slices":2},
"program": [
"0F0 0F0.1+1'I1.1 0R0 0STEP",
"0'F1 0'REDUCE_GRAD"
],
"boundaries": [5],
"hash": "7bf8d24df6f8829d586f959db770daab",
"checksum": "b9b3a2d1d8162261b596dff589ba4202"
}
)");
}

TEST(PlanFile, ReadsBackEqual) {
  const ParsedPlan read = read_plan(write_plan(rich_plan()));

  ASSERT_TRUE(read.plan) << faults(read.diagnostics);
  EXPECT_EQ(*read.plan, rich_plan());
}

TEST(PlanFile, Hash_CoversAllExceptTheName) {
  const Program original = rich_plan().program;
  std::vector<Program> changed(10, original);
  changed[0].shape.ranks = 3;
  changed[1].shape.micro_batches = 3;
  changed[2].shape.slices = 3;
  changed[3].shape.forward_only = true;
  changed[4].shape.placement = Placement({{Rank{0}, Rank{1}}, {Rank{0}, Rank{1}}});
  changed[5].shape.replica_of = {Replica{1}, Replica{0}};
  changed[6].ranks[0][0].op = Op::Backward;
  changed[7].ranks[0][1].with_next = false;
  std::swap(changed[8].ranks[0][3], changed[8].ranks[0][4]);
  changed[9].ranks[1][0].replica_number = 0;
  Program renamed = original;
  renamed.name = "other";

  EXPECT_EQ(plan_hash(original).size(), 32U);
  EXPECT_EQ(plan_hash(renamed), plan_hash(original));
  for (const Program& program : changed) EXPECT_NE(plan_hash(program), plan_hash(original));
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(PlanFile, TamperingIsNoticed) {
  const std::string text = write_plan(rich_plan());
  Program swapped = rich_plan().program;
  swapped.ranks[1][0].slice = Slice{1};

  EXPECT_EQ(plan_faults(replaced(text, "0'F1 ", "0'F1.1 ")),
            "10:9: the hash of the program is " + plan_hash(swapped) +
                ", not this one: the file was changed after it was written\n");
  EXPECT_THAT(plan_faults(replaced(text, "[5]", "[6]")),
              testing::StartsWith("11:13: the checksum of name and boundaries is "));
  EXPECT_THAT(plan_faults(replaced(text, "rich", "poor")),
              testing::StartsWith("11:13: the checksum of name and boundaries is "));
}

TEST(PlanFile, EveryFaultNamesItsLineAndColumn) {
  const std::string good = write_plan(rich_plan());
  const std::vector<std::array<std::string, 3>> cases = {
      {"\"name\":", "\"name\"", "3:22: this is not JSON\n"},
      {"\"name\": ", "\"nom\": ", "3:8: the field 'nom' is unknown\n"},
      {"\"millrace_plan\": 1",
       "\"millrace_plan\": 2",
       "2:18: the number is 2; allowed are 1 to 1\n"},
      {"\"ranks\":2", "\"ranks\":3", "4:84: the shape has 3 ranks, but the program 2\n"},
      {"\"ranks\":2", "\"ranks\":2.5", "4:84: expected a whole number from 1 to 2147483647\n"},
      {"\"micro_batches\":2",
       "\"micro_batches\":18446744073709551615",
       "4:48: the number is 18446744073709551615; allowed are 1 to 64\n"},
      {"\"micro_batches\":2",
       "\"micro_batches\":0",
       "4:48: the number is 0; allowed are 1 to 64\n"},
      {"[[0,1],[1,0]]",
       "[[0,1],[1]]",
       "4:69: every replica has the same number of stages, at least 1\n"},
      {"[[0,1],[1,0]]", "[[0,1],[1,2]]", "4:72: the number is 2; allowed are 0 to 1\n"},
      {"[[0,1],[1,0]]", "[]", "4:62: the placement has a list for each of 1 or 2 replicas\n"},
      {"\"replica_of\":[0,1]",
       "\"replica_of\":[0]",
       "4:99: replica_of has 1 entries for 2 micro-batches\n"},
      {"0F0 ",
       "0X0 ",
       "6:3: unknown action 'X'; known are F I W B SEND_F RECV_F SEND_B RECV_B REDUCE_GRAD R "
       "STEP\n"},
      {"0STEP", "0STEP ", "6:29: expected an action, found the end of the string\n"},
      {"0F0 ", "2F0 ", "6:1: 2F0, action 0 of rank 0, is outside the shape\n"},
      {"0F0.1+", "0F0.x+", "6:10: expected a slice number, found 'x'\n"},
      {"[5]", "[0]", "9:16: the number is 0; allowed are 1 to 2147483647\n"},
      {"[5]", "[5,6]", "9:15: there are 2 boundaries; 2 stages have 1\n"},
      {"\"hash\"", "\"mash\"", "10:9: the field 'mash' is unknown\n"},
  };
  for (const auto& [what, with, expected] : cases)
    EXPECT_EQ(plan_faults(replaced(good, what, with)), expected) << with;
  EXPECT_EQ(plan_faults("{\"ranks\":1e999}"), "1:1: a number in the file is too large\n");
  EXPECT_EQ(plan_faults("[]"), "1:1: a plan file is a JSON object\n");
  EXPECT_EQ(plan_faults("{}"), "1:1: the field 'millrace_plan' is missing\n");
  EXPECT_EQ(plan_faults(""), "1:1: this is not JSON\n");
}

TEST(PlanFile, RefusesBoundariesThatDoNotFit) {
  Plan plan = rich_plan();
  plan.boundaries = {3, 3};
  EXPECT_THROW((void)write_plan(plan), InvalidArgument);
  plan.boundaries = {0};
  EXPECT_THROW((void)write_plan(plan), InvalidArgument);
}

TEST(PlanFile, MutatedIsRefusedUnlessItSaysTheSame) {
  const Plan original = rich_plan();
  mutate(write_plan(original), "0123456789FIWB'.+ \"[]{},:truefalse", [&](const std::string& text) {
    const ParsedPlan read = read_plan(text);
    ASSERT_NE(read.plan.has_value(), !read.diagnostics.empty()) << text;
    if (!read.plan) return;
    ASSERT_EQ(*read.plan, original) << text;
  });
}

}  // namespace
}  // namespace millrace
