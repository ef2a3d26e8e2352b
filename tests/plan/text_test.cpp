// The two text forms: round trips over the catalogue, every fault with its exact place and words,
// and hostile input.
#include "millrace/scheduler/plan/text.hpp"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace {
namespace {

constexpr const char* kOneFOneB = "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n";

Program read_good(std::string_view text, const CsvOptions& options = {}) {
  const ParsedProgram read = read_csv(text, options);
  if (!read.program) throw InvalidArgument(to_string(read.diagnostics.at(0)));
  return *read.program;
}

// All faults, one per line.
std::string faults(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += to_string(diagnostic) + "\n";
  return text;
}

std::string csv_faults(std::string_view text, const CsvOptions& options = {}) {
  const ParsedProgram read = read_csv(text, options);
  EXPECT_NE(read.program.has_value(), !read.diagnostics.empty());
  return faults(read.diagnostics);
}

std::string plan_faults(std::string_view text) {
  const ParsedPlan read = read_plan(text);
  EXPECT_NE(read.plan.has_value(), !read.diagnostics.empty());
  return faults(read.diagnostics);
}

// Every schedule of the catalogue at a few sizes, where it has a meaning.
std::vector<Program> catalogue() {
  std::vector<Program> programs;
  for (const ScheduleEntry& entry : schedules())
    for (const int ranks : {1, 2, 4})
      for (const int micro_batches : {1, 4, 8}) {
        ScheduleOptions options;
        options.ranks = ranks;
        options.micro_batches = micro_batches;
        try {
          programs.push_back(generate(entry.name, options));
        } catch (const InvalidArgument&) {
          continue;  // has no meaning at this size
        }
      }
  return programs;
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

TEST(ScheduleCsv, EveryTypeOfTheGrammarIsReadAndWrittenBack) {
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

TEST(Text, EveryScheduleOfTheCatalogueSurvivesBothForms) {
  std::size_t csv = 0;
  for (const Program& program : catalogue()) {
    const ParsedPlan plan = read_plan(write_plan({program, {}}));
    ASSERT_TRUE(plan.plan) << program.name << ": " << faults(plan.diagnostics);
    EXPECT_EQ(plan.plan->program, program) << program.name;
    EXPECT_EQ(plan.plan->program.name, program.name);
    EXPECT_EQ(plan_hash(plan.plan->program), plan_hash(program));
    if (program.shape.replicas() > 1 || program.shape.slices > 1) {
      EXPECT_NE(message(program), "") << program.name;
      continue;
    }
    const ParsedProgram read = read_csv(write_csv(program));
    ASSERT_TRUE(read.program) << program.name << ": " << faults(read.diagnostics);
    EXPECT_EQ(*read.program, program) << program.name;
    ++csv;
  }
  EXPECT_GT(csv, 0U);
}

// A plan with everything the CSV lacks: replicas, slices, recompute, a step, a pair, boundaries.
Plan rich_plan() {
  Plan plan;
  Program& program = plan.program;
  program.name = "rich \"plan\"";
  program.shape.ranks = 2;
  program.shape.micro_batches = 2;
  program.shape.slices = 2;
  program.shape.placement = Placement::mirrored(2);
  program.shape.replica_of = {Replica{0}, Replica{1}};
  const auto act =
      [](Op op, int replica, int stage, int micro_batch, int slice, bool pair = false) {
        return Action{op,
                      pair,
                      static_cast<std::uint16_t>(replica),
                      Stage{stage},
                      MicroBatch{micro_batch},
                      Slice{slice}};
      };
  program.ranks = {{act(Op::Forward, 0, 0, 0, 0),
                    act(Op::Forward, 0, 0, 0, 1, true),
                    act(Op::BackwardInput, 1, 1, 1, 1),
                    act(Op::Recompute, 0, 0, 0, 0),
                    act(Op::OptimizerStep, 0, 0, 0, 0)},
                   {act(Op::Forward, 1, 0, 1, 0), act(Op::ReduceGrad, 1, 0, 0, 0)}};
  plan.boundaries = {5};
  return plan;
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

TEST(PlanFile, HashDependsOnEveryPartOfTheProgramButItsName) {
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

// A bounded campaign with the seed in the text; tests/fuzz has the open-ended one.
template <class Read>
void mutate(const std::string& original, const std::string& alphabet, Read read) {
  std::mt19937 random(20240917);
  for (int round = 0; round < 2000; ++round) {
    std::string text = original;
    const auto edits = 1 + random() % 4;
    for (unsigned edit = 0; edit < edits && !text.empty(); ++edit) {
      const std::size_t at = random() % text.size();
      const char byte = random() % 8 == 0 ? static_cast<char>(random() % 256)
                                          : alphabet[random() % alphabet.size()];
      switch (random() % 4) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        case 2:
          text.erase(at, 1 + random() % 3);
          break;
        default:
          text += text.substr(at, random() % 40);
      }
    }
    read(text);
  }
}

TEST(Text, MutatedCsvIsReadOrRefusedButNeverHalfRead) {
  mutate(kOneFOneB, "0123456789FIWBSENDRCV_(;),\n ", [](const std::string& text) {
    const ParsedProgram read = read_csv(text);
    ASSERT_NE(read.program.has_value(), !read.diagnostics.empty()) << text;
    if (!read.program) return;
    const Program& program = *read.program;
    ASSERT_EQ(read_csv(write_csv(program)).program, program) << text;
  });
}

TEST(Text, MutatedPlansAreRefusedUnlessTheySayTheSame) {
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
