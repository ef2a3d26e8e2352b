// Text on the command line: training on it, its checkpoint, and what is generated from that.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;

constexpr const char* kModel = "--model gpt:layers=1,d=16,heads=2,context=16";

class GenerateCommand : public CommandTest {
 protected:
  /// A few lines of text that a small model can take.
  void SetUp() override {
    CommandTest::SetUp();
    std::string text;
    for (int i = 0; i < 60; ++i) text += "line " + std::to_string(i) + " of the text\n";
    write("lines.txt", text);
  }

  [[nodiscard]] std::string train(const std::string& more) const {
    return std::string("train ") + kModel + " --data text:" + path("lines.txt") +
           " --batch-size 8 -m 2 --steps 4 " + more;
  }
};

TEST_F(GenerateCommand, TrainsOnTextAndPrintsASample) {
  const Ran text = command(train("-p 2"));
  ASSERT_EQ(text.code, 0) << text.text;
  EXPECT_THAT(text.text, HasSubstr("nats per character"));
  EXPECT_THAT(text.text, HasSubstr("bits (gzip -9: "));
  EXPECT_THAT(text.text, HasSubstr("tokens/s"));
  EXPECT_THAT(text.text, HasSubstr("sample:\n"));
  const Ran json = command(train("-p 2 --json"));
  const auto document = json_in(json.text);
  EXPECT_NEAR(document["text"]["bits_per_character"].get<double>(),
              document["text"]["nats_per_character"].get<double>() / 0.6931471805599453,
              1e-12);
  EXPECT_EQ(document["text"]["nats_per_character"], document["test_loss"]);
  EXPECT_EQ(document["text"]["sample"].get<std::string>().size(), 201U);
}

TEST_F(GenerateCommand, DrawsNothingThatTheTextDoesNotKnow) {
  const Ran ran = command(
      "train --model gpt:layers=1,d=16,heads=2,context=16,vocabulary=5000 "
      "--data text --batch-size 4 -m 2 -p 1 --steps 1");
  EXPECT_EQ(ran.code, 0) << ran.text;
  EXPECT_THAT(ran.text, HasSubstr("sample:\n"));
}

TEST_F(GenerateCommand, HasTheSameWeightsInProcesses) {
  const auto hash_in = [](const std::string& output) {
    return json_in(output)["weights_hash"].get<std::string>();
  };
  const Ran alone = command(train("-p 3 --json"));
  ASSERT_EQ(alone.code, 0) << alone.text;
  const Ran processes = command("launch -n 3 -- " + train("--json"));
  ASSERT_EQ(processes.code, 0) << processes.text;
  EXPECT_EQ(hash_in(processes.text), hash_in(alone.text));
  const Ran sliced = command(train("-p 1 --schedule seq-1f1b --slices 4 --json"));
  ASSERT_EQ(sliced.code, 0) << sliced.text;
  const Ran in_two = command("launch -n 2 -- " + train("--schedule seq-1f1b -q 4 --json"));
  ASSERT_EQ(in_two.code, 0) << in_two.text;
  EXPECT_EQ(hash_in(in_two.text), hash_in(sliced.text));
}

TEST_F(GenerateCommand, ContinuesAPromptAlikeInEveryNumberOfStages) {
  ASSERT_EQ(command(train("-p 2 --save " + path("saved"))).code, 0);
  const std::string ask =
      "generate --resume " + path("saved") + " --prompt 'line 7' --tokens 40 --samples 2 --seed 3";
  const Ran one = command(ask);
  ASSERT_EQ(one.code, 0) << one.text;
  EXPECT_THAT(one.text, testing::StartsWith("line 7"));
  EXPECT_THAT(one.text, HasSubstr("\n---\nline 7"));
  EXPECT_EQ(command(ask + " -p 3").text, one.text);
  const Ran json = command(ask + " --json");
  EXPECT_EQ(json_in(json.text)["samples"].size(), 2U);
  EXPECT_NE(command(ask + " --temperature 0").text, one.text);
}

TEST_F(GenerateCommand, NeedsNothingButTheCheckpoint) {
  ASSERT_EQ(command(train("-p 2 --save " + path("alone"))).code, 0);
  const std::string ask = "generate --resume " + path("alone") + " --prompt 'text' --tokens 20";
  const Ran with_data = command(ask + " --data text:" + path("lines.txt"));
  ASSERT_EQ(with_data.code, 0) << with_data.text;
  std::filesystem::remove(path("lines.txt"));
  EXPECT_EQ(command(ask).text, with_data.text);
  EXPECT_NE(command(ask + " --data text:" + path("lines.txt")).code, 0);
}

TEST_F(GenerateCommand, RefusesADamagedVocabulary) {
  ASSERT_EQ(command(train("-p 2 --save " + path("saved"))).code, 0);
  std::string run;
  for (const auto& file : std::filesystem::recursive_directory_iterator(path("saved")))
    if (file.path().filename() == "run.json") run = file.path().string();
  std::ifstream in(run);
  auto facts = nlohmann::json::parse(in);
  facts.erase("run_xxh3_128");  // as versions wrote it that had no seal
  const std::string digits = facts.at("vocabulary");
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) {
    all_bytes += "0123456789abcdef"[byte / 16];
    all_bytes += "0123456789abcdef"[byte % 16];
  }
  for (const std::string& damaged : {digits + "0", "zz" + digits, all_bytes}) {
    facts["vocabulary"] = damaged;
    std::ofstream(run) << facts;
    expect_refused("generate --resume " + path("saved"), 65, "run.json vocabulary: ");
  }
}

TEST_F(GenerateCommand, RefusesInOneMessage) {
  ASSERT_EQ(command(train("-p 2 --save " + path("saved"))).code, 0);
  ASSERT_EQ(command("train --model mlp:64-8-10 --steps 1 -p 1 -m 2 --save " + path("mlp")).code, 0);
  const std::string resume = "generate --resume " + path("saved");
  expect_refused(resume + " --prompt '#'", 2, "byte 0 of the text, 35, is not in the vocabulary");
  expect_refused(resume + " -p 99", 2, "every stage needs at least one layer");
  expect_refused(resume + " --tokens 0", 2, "--tokens 0: must be from 1 to");
  expect_refused(resume + " --data text", 78, "is not the text that");
  expect_refused("generate --resume " + path("mlp"), 2, "cannot generate text; use a gpt: model");
  expect_refused("generate --resume " + path("nothing"), 65, "nothing");
  expect_refused("train --data text", 2, "a model of sequences names");
  expect_refused(std::string("train ") + kModel, 2, "takes text, but --data digits is not text");
  expect_refused(train("-p 2 --schedule seq-1f1b -q 17"), 2, "must be from 1 to 16");
  expect_refused(train("-p 2 --schedule 1f1b -q 2"), 2, "schedule 1f1b has no slices");
}

}  // namespace
}  // namespace millrace::test
