// train -d as a user meets it: copies of a pipeline as threads of one process.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;

using testing::HasSubstr;
using testing::Not;

const std::string kCopiesJob =
    "train --model mlp:64-24-20-16-10,dropout=0.1 --batch-size 100 --json ";

class TrainCopies : public CommandTest {};

TEST_F(TrainCopies, ShareMiniBatchesWithTheSameBits) {
  const std::string job = kCopiesJob + "--steps 15 ";
  const json one = json_in(command(job + "-p 1 -m 8 --accumulate-order tree").text);
  for (const char* grid : {"-d 2 -p 1 -m 4",
                           "-d 4 -p 2 -m 2 --schedule zb-h1",
                           "-d 2 -p 2 -m 2 --accumulate 2 --executor ranks",
                           "--data-parallel 8 -p 1 -m 1"}) {
    const json several = json_in(command(job + grid).text);
    EXPECT_EQ(several["weights_hash"], one["weights_hash"]) << grid;
    EXPECT_EQ(several["losses_hex"], one["losses_hex"]) << grid;
    EXPECT_EQ(several["settings"]["accumulate_order"], "tree");
    EXPECT_FALSE(several.contains("processes"));
    EXPECT_EQ(several["bubble"]["measured"]["per_rank"].size(), several["settings"]["ranks"]);
    EXPECT_EQ(several["peak_stash_bytes"]["counted"], several["peak_stash_bytes"]["predicted"]);
    EXPECT_EQ(several["peak_sum_bytes"]["counted"], several["peak_sum_bytes"]["predicted"]);
  }
  EXPECT_EQ(one["peak_sum_bytes"]["counted"], one["peak_sum_bytes"]["predicted"]);
  const json ascending = json_in(command(job + "-p 1 -m 8").text);
  EXPECT_EQ(ascending["settings"]["accumulate_order"], "ascending");
  EXPECT_NE(ascending["weights_hash"], one["weights_hash"]);
  EXPECT_FALSE(ascending.contains("peak_sum_bytes"));
}

TEST_F(TrainCopies, TellTheBytesOfTheirPartialSums) {
  // Of one layer: 64 x 10 weights and 10 biases. The tree of 8 is at most four sums.
  const std::string job = "train --model mlp:64-10 --batch-size 64 --steps 2 ";
  const std::string bytes = std::to_string(4 * 4 * (64 * 10 + 10));
  EXPECT_THAT(command(job + "-p 1 -m 8 --accumulate-order tree").text,
              HasSubstr("peak bytes of partial sums (predicted), by rank: " + bytes + " (" + bytes +
                        ")\n"));
  EXPECT_THAT(command(job + "-p 1 -m 8").text, Not(HasSubstr("partial sums")));
}

TEST_F(TrainCopies, SayTheBytesThatSpreadingTheOptimizerSaves) {
  const std::string job =
      "train --model mlp:64-128-64-10 --steps 2 --batch-size 32 -d 2 -p 2 -m 2 --optimizer adamw ";
  const json whole = json_in(command(job + "--json").text);
  const json spread = json_in(command(job + "--json --shard-optimizer").text);
  // Layers of 64 * 128 + 128 numbers, and of 128 * 64 + 64 and 64 * 10 + 10: blocks of 4096 and
  // what is left of each parameter.
  const json two_moments = {8 * 8320, 8 * (8256 + 650)};
  EXPECT_EQ(whole["optimizer_bytes"]["counted"], two_moments);
  const json largest_shares = {8 * (4096 + 128), 8 * 8192};
  EXPECT_EQ(spread["optimizer_bytes"]["counted"], largest_shares);
  for (const json& run : {whole, spread})
    EXPECT_EQ(run["optimizer_bytes"]["predicted"], run["optimizer_bytes"]["counted"]);
  EXPECT_EQ(spread["weights_hash"], whole["weights_hash"]);
  EXPECT_THAT(
      command(job + "--shard-optimizer").text,
      HasSubstr(
          "optimizer state and master weights: at most 65536 bytes per rank (predicted 65536)\n"));
}

TEST_F(TrainCopies, OtherReplicaCount_ResumesInSavedOrder) {
  const std::string job = kCopiesJob + "--steps 6 ";
  const auto saved_by = [&](const std::string& order, const std::string& where) {
    const Ran whole = command(job + "-d 2 -p 2 -m 4 --save-every 4 --save " + path(where) + order);
    EXPECT_EQ(whole.code, 0) << whole.text;
    std::filesystem::remove_all(path(where) + "/step-0000000006");
    return json_in(whole.text)["weights_hash"];
  };
  const auto gone_on = [&](const std::string& where, const std::string& grid) {
    return command("train --json --resume " + path(where) + "/step-0000000004 " + grid).text;
  };
  const json expected = saved_by("", "tree");
  for (const char* grid : {"-p 1", "-d 4 -p 1", "-d 2 -p 3 --schedule zb-h1"}) {
    const std::string text = gone_on("tree", grid);
    EXPECT_EQ(json_in(text)["weights_hash"], expected) << grid;
    EXPECT_THAT(text, Not(HasSubstr("changed"))) << grid;
  }
  const json of_two = saved_by(" --accumulate-order ascending", "ascending");
  EXPECT_NE(of_two, expected);
  EXPECT_EQ(json_in(gone_on("ascending", "-d 2 -p 1"))["weights_hash"], of_two);
  EXPECT_THAT(gone_on("ascending", "-d 4 -p 1"),
              HasSubstr("the bits of an uninterrupted run end here: gradients were added in the "
                        "order 'of 2 copies, ascending', and are now in 'of 4 copies, ascending'"));
}

TEST_F(TrainCopies, EndWithTheFailureOfOne) {
  const Ran ran = command(
      "train --model mlp:64-24-10 --lr 1e30 --optimizer sgd --steps 50 -d 2 -p 1 -m 2 "
      "--max-skipped 3");
  EXPECT_EQ(ran.code, 1) << ran.text;
  EXPECT_THAT(ran.text, HasSubstr("not finite"));
}

TEST_F(TrainCopies, MeasureTheGradientsThatTheyAdd) {
  const std::string costs = path("costs.json");
  ASSERT_EQ(command("train --model mlp:64-24-10 -p 2 -m 4 --partition 1 --batch-size 64 --steps 3 "
                    "--profile " +
                    costs)
                .code,
            0);
  const json bytes = json::parse(read("costs.json"))["gradient_bytes"];
  // The two layers' weights and biases; the ReLU between them has none.
  EXPECT_EQ(bytes, (json{4 * (64 * 24 + 24), 4 * (24 * 10 + 10)}));
  const std::string job = "simulate 1f1b -p 2 -m 4 --json --costs " + costs;
  const json one = json::parse(command(job).text);
  const json two = json::parse(command(job + " -d 2 --bandwidth 1e6").text);
  EXPECT_FALSE(one.contains("sums"));
  EXPECT_NEAR(two["sums"]["longest"], 6240 / 1e6, 1e-9);
  // Copies write the costs of one.
  ASSERT_EQ(command("train --model mlp:64-24-10 -d 2 -p 2 -m 2 --partition 1 --batch-size 64 "
                    "--steps 3 --profile " +
                    costs)
                .code,
            0);
  EXPECT_EQ(json::parse(read("costs.json"))["gradient_bytes"], bytes);
}

}  // namespace
}  // namespace millrace::test
