// From a run to a prediction: what train --profile writes is what the plan subcommands compute
// with.
#include <cmath>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class MeasuredCosts : public CommandTest {
 protected:
  /// Trains shortly on two ranks; leaves the costs, the last step's trace and the plan.
  json train() const {
    const Ran ran = command(
        "train --model mlp:64-24-20-16-10 -p 2 -m 4 "
        "--batch-size 64 --steps 6 --json --profile " +
        costs_ + " --trace " + trace_);
    EXPECT_EQ(ran.code, 0) << ran.text;
    EXPECT_EQ(command("show 1f1b -p 2 -m 4 --plan " + plan_).code, 0);
    return json::parse(ran.text.substr(ran.text.find('{')));  // progress goes to standard error
  }

  static double sum(const json& numbers) {
    double total = 0;
    for (const json& number : numbers) total += number.get<double>();
    return total;
  }

  std::string costs_ = path("costs.json"), trace_ = path("trace.json"), plan_ = path("plan.json");
};

TEST_F(MeasuredCosts, AreWhatSimulateComputesWith) {
  const json run = train();
  const json costs = json::parse(read("costs.json"));

  const json simulated =
      json::parse(command("simulate 1f1b -p 2 -m 4 --json --costs " + costs_).text);

  for (std::size_t rank = 0; rank < 2; ++rank) {
    const double per_micro_batch =
        costs["forward"][rank].get<double>() + costs["backward"][rank].get<double>();
    EXPECT_NEAR(simulated["per_rank"][rank]["busy"], 4 * per_micro_batch, 1e-12);
    // Bytes of the model's own memory, not shares of a stage.
    EXPECT_EQ(simulated["per_rank"][rank]["peak_bytes"],
              run["peak_stash_bytes"]["predicted"][rank].get<double>());
  }
}

TEST_F(MeasuredCosts, ArePredictionBesideTheMeasuredTrace) {
  train();
  const std::string with = " --json --costs " + costs_;

  const json both = json::parse(command("compare " + plan_ + " " + trace_ + with).text);
  const json simulated = json::parse(command("simulate " + plan_ + with).text);

  EXPECT_EQ(both["costs"], "the costs of " + costs_);
  EXPECT_NEAR(both["makespan"]["simulated"], simulated["makespan"], 1e-12);
  EXPECT_GT(both["makespan"]["measured"], 0.0);
  EXPECT_GT(simulated["step"], simulated["makespan"]);  // norm and update
  EXPECT_EQ(both["per_op"]["F"]["count"], 8);
  EXPECT_EQ(both["per_rank"].size(), 2U);
}

TEST_F(MeasuredCosts, GiveTheMemoryLimitItsBytes) {
  train();
  const double full = sum(json::parse(read("costs.json"))["memory_forward"]) / 2;  // a full stage's

  // GPipe keeps m = 4 micro-batches of either stage: more than the bytes of 2, less than of 8.
  EXPECT_EQ(command("verify gpipe -p 2 -m 4 --memory-limit 4p --costs " + costs_).code, 0);
  const json gpipe = json::parse(
      command("verify gpipe -p 2 -m 4 --memory-limit 1p --json --costs " + costs_).text);
  EXPECT_EQ(gpipe["violations_by_rule"], json({{"memory", 2}}));
  EXPECT_THAT(gpipe["violations"][0]["sentence"].get<std::string>(),
              HasSubstr("the limit is " + std::to_string(std::lround(2 * full))));
}

TEST_F(MeasuredCosts, AreSearchedWithTheirNumberOfStages) {
  train();

  const Ran ran =
      command("search -p 2 -m 4 --budget 100 --memory-limit 2p --json --costs " + costs_);

  ASSERT_EQ(ran.code, 0) << ran.text;
  const json found = json::parse(ran.text);
  EXPECT_LE(found["peak_memory"], 4 * sum(json::parse(read("costs.json"))["memory_forward"]) / 2);
  // Measured seconds are no integers: the two sums may differ in the last bits.
  EXPECT_GE(found["makespan"].get<double>() * (1 + 1e-12), found["lower_bound"].get<double>());
}

TEST_F(MeasuredCosts, BelongToOneNumberOfRanks) {
  train();

  const Ran other = command("simulate 1f1b -p 4 -m 4 --costs " + costs_);
  const Ran twice = command("simulate 1f1b -p 2 -m 4 --w 3 --costs " + costs_);

  EXPECT_EQ(other.code, 2);
  EXPECT_EQ(
      other.text,
      "millrace: --costs " + costs_ +
          ": the costs are of p = 2, 2 stages and 1 slice; the schedule has p = 4, 4 stages and 1 "
          "slice\n");
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.text, StartsWith("millrace: --w was given, but --costs"));
}

TEST_F(MeasuredCosts, OfARunThatFailsAreNotWrittenOver) {
  write("costs.json", "kept");
  write("cycle.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(command("verify " + path("cycle.csv") + " --plan " + plan_).code, 1);

  const Ran ran = command("train --plan " + plan_ + " --profile " + costs_ + " --trace " + trace_);
  const Ran wrong = command("train --steps 1 --profile " + path("no/costs.json"));

  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.text, HasSubstr("rank 0 waits in 0B0 for 1B0"));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.text,
              StartsWith("millrace: --profile " + path("no/costs.json") +
                         " cannot be written: No such file or directory"));
  EXPECT_EQ(read("costs.json"), "kept");
  EXPECT_EQ(files(), 3U);
}

}  // namespace
}  // namespace millrace::test
