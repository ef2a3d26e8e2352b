// What the plan subcommands say of a step with several copies of the pipeline, several passes and a
// tree of sums.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class StepsOfCopies : public CommandTest {};

TEST_F(StepsOfCopies, AllReduce_OverlapsWithPasses) {
  const std::string job = "1f1b -p 2 -m 2 -d 2 --gradient-bytes 4 --bandwidth 1";
  const json figures = json::parse(command("simulate " + job + " --json").text);
  // The last B ends at 9; of 4 bytes 2 go to the other copy and 2 come back.
  EXPECT_EQ(figures["makespan"], 13);
  EXPECT_EQ(figures["sums"], (json{{"longest", 4}, {"hidden", 0}, {"exposed", 4}}));
  EXPECT_THAT(command("simulate " + job).text,
              HasSubstr("\ngradient all-reduces               4  "));
  const Ran shown = command("show " + job);
  EXPECT_THAT(shown.text, StartsWith("1f1b p=2 m=2, 2 copies: makespan 13, bubble 7 (53.85 %)"));
  EXPECT_THAT(shown.text, HasSubstr("rank 0 | 0 1 . .B0== .B1==+======="));
  EXPECT_THAT(command("show " + job + " --svg").text, HasSubstr("gradient reduction"));
  EXPECT_THAT(command("show " + job + " --html").text, HasSubstr("\"sums\":[[["));
  EXPECT_THAT(command("show " + job + " --comms").text, HasSubstr("0B1 0REDUCE_GRAD"));
  const Ran none = command("simulate 1f1b -d 0");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.text, HasSubstr("-d 0: must be an integer from 1"));
  EXPECT_THAT(
      command("simulate 1f1b --gradient-bytes 1 --bandwidth 1").text,
      HasSubstr(
          "--gradient-bytes is given without -d and without --accumulate-order tree; only these"));
}

/// Each of the two ranks adds 4 bytes of either stage over the copies of the pipeline, one behind
/// the other, and gives them to the other rank when it has come so far.
TEST_F(StepsOfCopies, OfABidirectionalPipelineAddTheReplicasToo) {
  const std::string job = "chimera -p 2 -m 2 -d 2 --gradient-bytes 4 --bandwidth 1";
  const json figures = json::parse(command("simulate " + job + " --json").text);
  EXPECT_EQ(figures["makespan"], 16);
  EXPECT_EQ(figures["sums"], (json{{"longest", 16}, {"hidden", 6}, {"exposed", 10}}));
  const Ran shown = command("show " + job);
  EXPECT_THAT(shown.text, StartsWith("chimera p=2 m=2, 2 copies: makespan 16"));
  EXPECT_THAT(command("show " + job + " --html").text, HasSubstr("\"sums\":[[["));
  EXPECT_EQ(command("show " + job + " --svg").code, 0);
  EXPECT_EQ(command("verify " + job + " --comms").code, 0);
  const json both = json::parse(command("compare 1f1b,chimera -d 2 -p 2 -m 2 --gradient-bytes 4 "
                                        "--bandwidth 1 --json")
                                    .text);
  EXPECT_EQ(both["chimera"]["makespan"], 16);
}

TEST_F(StepsOfCopies, OfSeveralPassesAreSearchedFor) {
  const std::string job =
      "search -p 2 -m 4 -d 2 --gradient-bytes 24 --bandwidth 1 --budget 500 --accumulate 3";
  const json found = json::parse(command(job + " --json").text);
  double least = found["step"];
  for (const json& other : found["front"]) least = std::min(least, other["step"].get<double>());
  EXPECT_EQ(found["step"], least);
  EXPECT_GE(least, found["lower_bound"].get<double>());
  EXPECT_GT(least, found["makespan"].get<double>());
  const Ran said = command(job);
  EXPECT_THAT(said.text, HasSubstr("\nstep of 3 passes"));
  EXPECT_THAT(said.text, HasSubstr("\nlower bound of the step"));
  const Ran span = command(job + " --objective span");
  EXPECT_EQ(span.code, 2);
  EXPECT_THAT(span.text, HasSubstr("--accumulate is 3: between the passes of a step"));
}

TEST_F(StepsOfCopies, PartialSums_AreMemory) {
  const std::string job = "simulate 1f1b -p 2 -m 8 --accumulate-order tree ";
  EXPECT_THAT(command(job).text, HasSubstr("partial sums of each stage at most: 4 4\n"));
  const json plain = json::parse(command("simulate 1f1b -p 2 -m 8 --json").text);
  const json tree = json::parse(command(job + "--gradient-bytes 10 --json").text);
  EXPECT_EQ(tree["partial_sums"], (json{4, 4}));
  EXPECT_FALSE(plain.contains("partial_sums"));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(plain["per_rank"][rank]["peak_bytes"], 2 - rank);
    EXPECT_EQ(tree["per_rank"][rank]["peak_bytes"], 40);
  }
  EXPECT_EQ(command(job + "--gradient-bytes 10 --memory-limit 29").code, 1);
  EXPECT_THAT(command("simulate 1f1b --accumulate-order any").text,
              HasSubstr("--accumulate-order any: must be ascending or tree"));
}

TEST_F(StepsOfCopies, SeveralPasses_ReduceAfterTheLast) {
  const std::string job = "1f1b -p 2 -m 2 -d 2 --gradient-bytes 4 --bandwidth 1 --accumulate 3";
  const json figures = json::parse(command("simulate " + job + " --json").text);
  // Two passes of 9, then one of 9 and the sums' 4.
  EXPECT_EQ(figures["accumulate"], 3);
  EXPECT_EQ(figures["makespan"], 13);
  EXPECT_EQ(figures["step"], 2 * 9 + 13);
  EXPECT_EQ(figures["sums"], (json{{"longest", 4}, {"hidden", 0}, {"exposed", 4}}));
  EXPECT_THAT(command("simulate " + job).text,
              AllOf(HasSubstr("A step is 3 passes; the makespan is of the last"),
                    HasSubstr("no span"),
                    Not(HasSubstr("\nspan"))));
  EXPECT_TRUE(figures["span"].is_null());
  EXPECT_THAT(command("show " + job).text, HasSubstr("the last of 3 passes; step 31\n"));
  EXPECT_THAT(command("compare 1f1b,gpipe -p 2 -m 2 --accumulate 3").text,
              HasSubstr("  27     -  "));
  EXPECT_FALSE(json::parse(command("simulate 1f1b --json").text).contains("accumulate"));
}

TEST_F(StepsOfCopies, SeveralPasses_KeepOneTree) {
  const std::string tree = " --accumulate-order tree --gradient-bytes 10 --json";
  const json four = json::parse(command("simulate 1f1b -p 2 -m 8 --accumulate 4" + tree).text);
  const json one = json::parse(command("simulate 1f1b -p 2 -m 32" + tree).text);
  EXPECT_EQ(four["partial_sums"], (json{6, 6}));
  EXPECT_EQ(four["partial_sums"], one["partial_sums"]);
  for (std::size_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(four["per_rank"][rank]["peak_bytes"], one["per_rank"][rank]["peak_bytes"]);
  const std::string checked = "verify 1f1b -p 2 -m 8 --accumulate 4 --memory-limit ";
  EXPECT_EQ(four["per_rank"][0]["peak_bytes"], 60);
  EXPECT_EQ(command(checked + "60" + tree).code, 0);
  EXPECT_EQ(command(checked + "59" + tree).code, 1);
}

TEST_F(StepsOfCopies, RefuseWhatIsOfOnePassAlone) {
  EXPECT_THAT(
      command("simulate 1f1b --accumulate 2 --jitter 0.1").text,
      StartsWith("millrace: --jitter varies steps of one pass; leave it or --accumulate 2"));
  EXPECT_THAT(command("simulate 1f1b --accumulate 2 --iterations 3").text,
              StartsWith("millrace: --iterations runs steps of one pass; leave it or"));
  EXPECT_THAT(command("simulate 1f1b --accumulate 0").text,
              StartsWith("millrace: --accumulate 0: must be an integer from 1"));
  EXPECT_THAT(
      command("simulate 1f1b -m 1001 --accumulate 1000000").text,
      StartsWith("millrace: --accumulate is 1000000; a step has 1 to 999000 passes of 1001"));
}

}  // namespace
}  // namespace millrace::test
