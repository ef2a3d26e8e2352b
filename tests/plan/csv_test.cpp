// The schedule CSV: its grammar, every fault with its exact place and words, and hostile input.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "plan/text_cases.hpp"

namespace millrace {
namespace {

constexpr const char* kOneFOneB = "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n";

Program read_good(std::string_view text, const CsvOptions& options = {}) {
  const ParsedProgram read = read_csv(text, options);
  if (!read.program) throw InvalidArgument(to_string(read.diagnostics.at(0)));
  return *read.program;
}

std::string csv_faults(std::string_view text, const CsvOptions& options = {}) {
  const ParsedProgram read = read_csv(text, options);
  EXPECT_NE(read.program.has_value(), !read.diagnostics.empty());
  return faults(read.diagnostics);
}

std::string message(const Program& program) {
  try {
    (void)write_csv(program);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(ScheduleCsv, ShapeIsDerivedFromTheRows) {
  const Program program = read_good("3F1,0F0,0F1\n\t1F0 , 2F0,\n");

  EXPECT_EQ(program.shape.ranks, 2);
  EXPECT_EQ(program.shape.stages(), 4);
  EXPECT_EQ(program.shape.micro_batches, 2);
  EXPECT_EQ(program.shape.placement, Placement({{Rank{0}, Rank{1}, Rank{1}, Rank{0}}}));
  EXPECT_TRUE(program.shape.forward_only);
  EXPECT_EQ(program.ranks[1].size(), 2U);
}

TEST(ScheduleCsv, EveryActionType_RoundTrips) {
  const std::string text =
      "0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD\n"
      "1RECV_F0,(1F0;2B0)OVERLAP_F_B,2F0,1B0,1SEND_B0\n";

  const Program program = read_good(text);

  EXPECT_EQ(write_csv(program), text);
  EXPECT_EQ(program.ranks[0][5].op, Op::ReduceGrad);
  EXPECT_TRUE(program.ranks[1][1].with_next);
  EXPECT_FALSE(program.ranks[1][2].with_next);
}

TEST(ScheduleCsv, CommentsIdleCellsAndBlankEndingsAreSkipped) {
  const Program plain = read_good(kOneFOneB);

  EXPECT_EQ(read_good("# by hand\n0F0,0F1,,0B0,0F2,0B1,0B2\n# rank 1\n"
                      ",1F0,1B0, ,1F1,1B1,1F2,1B2,\r\n\n\n"),
            plain);
  EXPECT_EQ(write_csv(plain), kOneFOneB);
}

TEST(ScheduleCsv, OldLettersAreReadOnlyWhenAskedFor) {
  const std::string text = "0F0,0B0,0W0,0F1,0BW1\n";

  const Program program = read_good(text, {.old_letters = true});

  EXPECT_EQ(write_csv(program), "0F0,0I0,0W0,0F1,0B1\n");
  EXPECT_EQ(csv_faults(text),
            "1:18: BW is the full backward of PyTorch's old letters; write B, or read with the old "
            "letters\n");
  EXPECT_EQ(csv_faults("0I0\n", {.old_letters = true}),
            "1:2: I is not among PyTorch's old letters, where B is the input gradient\n");
}

TEST(ScheduleCsv, ShardingIsSkippedOnlyWhenAskedFor) {
  const std::string text = "0UNSHARD,0F0,0B0,0RESHARD\n";

  EXPECT_EQ(write_csv(read_good(text, {.skip_sharding = true})), "0F0,0B0\n");
  EXPECT_EQ(csv_faults("0F0,0UNSHARD\n"),
            "1:5: UNSHARD and RESHARD move parameters, which a millrace program does not have; "
            "skip them by option\n");
}

TEST(ScheduleCsv, EveryFaultNamesItsLineAndColumn) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "1:1: there is no row; a schedule has one row per rank\n"},
      {"# only words\n", "1:1: there is no row; a schedule has one row per rank\n"},
      {"0F0,xF1\n", "1:5: expected a stage number, found 'x'\n"},
      {"0F0,\xC3\xA9\n", "1:5: expected a stage number, found byte 0xC3\n"},
      {"0F0, 0\n", "1:7: expected an action's letters, found the end\n"},
      {"0F0,0f1\n", "1:6: expected an action's letters, found 'f'\n"},
      {"0F0,0Q1\n",
       "1:6: unknown action 'Q'; known are F I W B SEND_F RECV_F SEND_B RECV_B REDUCE_GRAD\n"},
      {"0R0\n",
       "1:2: unknown action 'R'; known are F I W B SEND_F RECV_F SEND_B RECV_B REDUCE_GRAD\n"},
      {"0F0,0F\n", "1:7: expected a micro-batch number, found the end\n"},
      {"0F0,0F-1\n", "1:7: expected a micro-batch number, found '-'\n"},
      {"0F0,0F1 0B1\n", "1:8: unexpected ' 0B1' after 0F1\n"},
      {"0F0.1\n", "1:4: unexpected '.1' after 0F0\n"},
      {"0F0\n0'F0\n", "2:2: expected an action's letters, found '''\n"},
      {"0F0,0REDUCE_GRAD1\n", "1:17: unexpected '1' after 0REDUCE_GRAD\n"},
      {"0F99999999999\n", "1:3: a micro-batch number is larger than 2147483646\n"},
      {"99999999999F0\n", "1:1: a stage number is larger than 2147483646\n"},
      {"0F0,(0F1;0B0\n", "1:5: the pair has no closing parenthesis\n"},
      {"0F0,(0F1;0B0)OVERLAP\n", "1:13: a pair ends in ')OVERLAP_F_B'\n"},
      {"0F0,(0F1;0B0)OVERLAP_F_BB\n", "1:13: a pair ends in ')OVERLAP_F_B'\n"},
      {"0F0,(0F1)OVERLAP_F_B\n", "1:5: a pair is two actions separated by a semicolon\n"},
      {"0F0,(0F1;0B0;0W0)OVERLAP_F_B\n", "1:13: unexpected ';0W0' after 0B0\n"},
      {"0F0,(0F1;)OVERLAP_F_B\n", "1:10: expected a stage number, found the end\n"},
      {"0F0\n\n1F0\n", "2:1: the row is empty; every rank has at least one action\n"},
      {"0F0\n,,\n", "2:1: the row has no action; every rank has at least one\n"},
      {"0F0,0B0\n# note\n1F0,0B1\n",
       "3:5: stage 0 is on rank 0 already (line 1); this grammar has one rank per stage\n"},
      {"0F0\n2F0\n", "2:1: stage 1 does not occur, but stage 2 does\n"},
      {"0F0,0F2147483646,0B0\n",
       "1:5: micro-batch 2147483646 on 1 stages cannot be: the file has only 3 actions\n"},
      {"xF0,0F0\n0Fy\n",
       "1:1: expected a stage number, found 'x'\n"
       "2:3: expected a micro-batch number, found 'y'\n"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(csv_faults(text), expected) << text;
}

TEST(ScheduleCsv, RefusesWhatTheGrammarCannotSay) {
  const auto one = [](Action action, int slices) {
    Program program;
    program.shape.placement = Placement::straight(1);
    program.shape.slices = slices;
    program.ranks = {{action}};
    return program;
  };
  Action action;
  Program mirrored;
  mirrored.shape.placement = Placement::mirrored(2);

  EXPECT_EQ(message(one(action, 2)),
            "the schedule has 2 slices per micro-batch, and the schedule CSV has no sign for a "
            "slice; a plan file (JSON) says it");
  EXPECT_EQ(message(mirrored),
            "the schedule has 2 replicas, and the schedule CSV has no sign for a replica; a plan "
            "file (JSON) says it");
  action.op = Op::Recompute;
  EXPECT_EQ(message(one(action, 1)),
            "the schedule has 0R0 on rank 0, and the schedule CSV has no sign for R; a plan file "
            "(JSON) says it");
  action.op = Op::OptimizerStep;
  EXPECT_EQ(message(one(action, 1)),
            "the schedule has 0STEP on rank 0, and the schedule CSV has no sign for STEP; a plan "
            "file (JSON) says it");
  action.op = Op::Forward;
  action.with_next = true;
  EXPECT_EQ(message(one(action, 1)), "the pair at 0F0 on rank 0 does not have exactly two halves");
}

TEST(ScheduleCsv, Mutated_IsReadOrRejected) {
  mutate(kOneFOneB, "0123456789FIWBSENDRCV_(;),\n ", [](const std::string& text) {
    const ParsedProgram read = read_csv(text);
    ASSERT_NE(read.program.has_value(), !read.diagnostics.empty()) << text;
    if (!read.program) return;
    const Program& program = *read.program;
    ASSERT_EQ(read_csv(write_csv(program)).program, program) << text;
  });
}

}  // namespace
}  // namespace millrace
