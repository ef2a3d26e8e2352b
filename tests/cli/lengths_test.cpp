// `--lengths bucket` on the command line: lines of a text, in one process and in several, saved and
// gone on from, told with their padding.
#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string hash_in(const Ran& ran) {
  EXPECT_EQ(ran.code, 0) << ran.text;
  return ran.code == 0 ? json_in(ran.text)["weights_hash"].get<std::string>() : ran.text;
}

class LengthsOption : public CommandTest {
 protected:
  /// 100 lines of 5 to 24 characters.
  void SetUp() override {
    CommandTest::SetUp();
    std::string text;
    for (std::size_t i = 0; i < 100; ++i)
      text += std::to_string(10 + i % 90) + std::string(3 + i * 7 % 20, 'x') + "\n";
    write("lines.txt", text);
  }

  [[nodiscard]] std::string train(const std::string& more,
                                  const std::string& lengths = "bucket",
                                  int micro_batches = 4) const {
    return "train --model gpt:layers=1,d=16,heads=2,context=16 --data text:" + path("lines.txt") +
           " --batch-size 8 --steps 14 -m " + std::to_string(micro_batches) + " --lengths " +
           lengths + " " + more;
  }
};

TEST_F(LengthsOption, ReportsTokensAndPadding) {
  const Ran text = command(train("-p 2"));
  ASSERT_EQ(text.code, 0) << text.text;
  EXPECT_THAT(text.text, HasSubstr(" tokens/s  padding "));
  EXPECT_THAT(text.text, HasSubstr(" % of positions padding\n"));
  const auto document = json_in(command(train("-p 3 --json")).text);
  EXPECT_EQ(document["settings"]["lengths"], "bucket");
  const double padding = document["text"]["padding"].get<double>();
  EXPECT_GT(padding, 0);
  EXPECT_LT(padding, 0.3);
  EXPECT_GT(document["text"]["tokens_per_second"].get<double>(), 0);
  // Bytes from the last newline in nine tenths of 1450: all are judged but that one itself.
  const std::string bytes = read("lines.txt");
  const auto judged = bytes.size() - 1 - bytes.rfind('\n', bytes.size() * 9 / 10);
  EXPECT_THAT(text.text, HasSubstr("), " + std::to_string(judged) + " characters\n"));
  const auto& counted = document["peak_stash_bytes"]["counted"];
  for (std::size_t rank = 0; rank < counted.size(); ++rank)
    EXPECT_LE(counted[rank], document["peak_stash_bytes"]["predicted"][rank]) << rank;
  const Ran fixed = command(train("-p 2", "fixed"));
  EXPECT_THAT(fixed.text, AllOf(HasSubstr(" tokens/s"), Not(HasSubstr("padding"))));
}

TEST_F(LengthsOption, EverySplit_SameWeights) {
  const std::string alone = hash_in(command(train("-p 1 --executor sequential --json")));
  EXPECT_EQ(hash_in(command(train("-p 3 --executor ranks --recompute --json"))), alone);
  EXPECT_EQ(hash_in(command(train("-p 2 --accumulate 2 --schedule zb-v --json", "bucket", 2))),
            alone);
  for (const char* link : {"shm", "ipc", "tcp"})
    EXPECT_EQ(
        hash_in(command(std::string("launch -n 3 --endpoint ") + link + " -- " + train("--json"))),
        alone)
        << link;
  EXPECT_NE(hash_in(command(train("-p 1 --json", "fixed"))), alone);
  EXPECT_NE(hash_in(command(train("-p 1 --precision bf16 --json"))), alone);
  EXPECT_EQ(hash_in(command("launch -n 2 -- " + train("--precision bf16 --json"))),
            hash_in(command(train("-p 1 --precision bf16 --json"))));
}

TEST_F(LengthsOption, Checkpoint_RestoresTheOption) {
  const std::string alone = hash_in(command(train("-p 1 --json")));
  ASSERT_EQ(command(train("-p 2 --save-every 9 --save " + path("saved"))).code, 0);
  const std::string resume = "--resume " + path("saved/step-0000000009") + " --json";
  EXPECT_EQ(hash_in(command("train -p 3 " + resume)), alone);
  EXPECT_EQ(hash_in(command("launch -n 2 -- train " + resume)), alone);
  expect_refused("train -p 1 --lengths fixed " + resume,
                 78,
                 "--lengths fixed: the checkpoint was trained with bucket");
  for (const std::string& data : {std::string(), " --data text:" + path("lines.txt")}) {
    const Ran generated =
        command("generate --tokens 5 --prompt 12 --resume " + path("saved") + data);
    EXPECT_EQ(generated.code, 0) << generated.text;
  }
}

TEST_F(LengthsOption, RefusesWhatCannotGoWithIt) {
  expect_refused("train --lengths bucket",
                 2,
                 "--lengths bucket: samples are lines of a text, but --data digits is none");
  expect_refused(train("-p 2", "long"), 2, "--lengths long: unknown lengths 'long'; known");
  expect_refused(train("-p 2 --schedule seq-1f1b -q 4"),
                 2,
                 "--lengths bucket: --schedule seq-1f1b cuts samples into 4 slices, which need "
                 "samples of one length");
  expect_refused("launch -n 2 -- " + train("--schedule seq-1f1b -q 2"), 2, "--lengths bucket");
  expect_refused("launch -n 2 -- train --lengths bucket", 2, "--data digits is none");
}

}  // namespace
}  // namespace millrace::test
