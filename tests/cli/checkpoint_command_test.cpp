// Checkpoints as a user meets them: saved by train and launch, looked at, damaged, resumed in
// another cut with the same weights, and saved once more when the run is told to stop.
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/command.hpp"
#include "tests/cli/command_test.hpp"
#include "tests/cli/launched.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_files::Folder;

const std::string kCheckpointJob =
    "train --model mlp:64-16-16-10,dropout=0.1 -m 4 --steps 8 --seed 3 --executor sequential ";
const std::string kLaunched = "train --model mlp:64-16-16-10,dropout=0.1 -m 4 --steps 8 --seed 3 ";

std::string weights_in(const std::string& text) {
  const std::size_t at = text.find("weights ");
  return at == std::string::npos ? "none in: " + text : text.substr(at + 8, 32);
}

/// A run of eight steps that saved after steps 3, 6 and 8.
class CheckpointCommand : public testing::Test {
 protected:
  CheckpointCommand()
      : folder_(std::string("cli_checkpoint_") +
                testing::UnitTest::GetInstance()->current_test_info()->name()),
        place_(folder_.path() + "/saved"),
        whole_(command(kCheckpointJob + "-p 2 --save " + place_ + " --save-every 3 --keep 5")) {}

  Folder folder_;
  std::string place_;
  Ran whole_;
};

TEST_F(CheckpointCommand, OtherPartition_SameWeights) {
  ASSERT_EQ(whole_.code, 0) << whole_.text;
  EXPECT_THAT(whole_.text, HasSubstr("3 checkpoints saved, the newest " + place_));
  const std::string weights = weights_in(whole_.text);
  const std::string from = " --resume " + place_ + "/step-0000000003";
  const Ran one = command("train -p 3 --schedule gpipe --executor ranks" + from);
  EXPECT_EQ(one.code, 0);
  EXPECT_THAT(one.text, HasSubstr("resumed " + place_ + "/step-0000000003"));
  EXPECT_THAT(one.text, Not(HasSubstr("changed")));
  EXPECT_EQ(weights_in(one.text), weights) << one.text;
  const Ran many = command("launch -n 3 -- train" + from);
  EXPECT_EQ(many.code, 0);
  EXPECT_EQ(weights_in(many.text), weights) << many.text;
  const Ran other = command("train --lr 0.001" + from);
  EXPECT_THAT(other.text, HasSubstr("changed learning_rate.base: 0.001, was 0.003"));
  const Ran refused = command("train --seed 4" + from);
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.text, HasSubstr("seed differs: the checkpoint has 3, this training 4"));
}

TEST_F(CheckpointCommand, SavesTheSameInProcesses) {
  const std::string other = folder_.path() + "/launched";
  const Ran launched =
      command("launch -n 3 -- " + kLaunched + "--save " + other + " --save-every 3 --keep 5");
  ASSERT_EQ(launched.code, 0) << launched.text;
  for (const char* step : {"/step-0000000003", "/step-0000000008"}) {
    const Ran same = command("checkpoint diff " + place_ + step + " " + other + step);
    EXPECT_EQ(same.code, 0) << same.text;
    EXPECT_EQ(same.text, "");
  }
  const Ran differs = command("checkpoint diff " + place_ + "/step-0000000003 " + other);
  EXPECT_EQ(differs.code, 1);
  EXPECT_THAT(differs.text,
              AllOf(HasSubstr("updates: 3, 8"), HasSubstr("layers.0.weight: largest difference")));
}

TEST_F(CheckpointCommand, ListsShowsVerifiesAndExports) {
  const Ran list = command("checkpoint ls " + place_);
  EXPECT_EQ(list.code, 0);
  EXPECT_THAT(list.text, HasSubstr(place_ + "/step-0000000008  8 updates"));
  EXPECT_EQ(weights_in(list.text), weights_in(whole_.text));
  EXPECT_THAT(command("checkpoint verify " + place_).text, HasSubstr("every hash holds"));
  EXPECT_THAT(command("checkpoint show " + place_).text,
              AllOf(HasSubstr("optimizer   adamw"), HasSubstr("layers.0.weight/first_moment")));
  const std::string file = folder_.path() + "/weights.safetensors";
  EXPECT_EQ(command("checkpoint export " + place_ + " --output " + file).code, 0);
  const Ran begun = command(
      "train --model mlp:64-16-16-10,dropout=0.1 -m 4 --seed 3 --steps 1 --lr 0 -p 1 --weights " +
      file);
  EXPECT_EQ(weights_in(begun.text), weights_in(whole_.text)) << begun.text;
  const Ran refused = command("train --steps 1 --model mlp:64-16-10 -p 1 --weights " + file);
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.text, HasSubstr("--weights " + file + ": has '"));
}

TEST_F(CheckpointCommand, NamesWhatIsDamagedAndPassesItOver) {
  const std::string shard = place_ + "/step-0000000008/layers.0.optimizer.safetensors";
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('\x7F');
  }
  const Ran verified = command("checkpoint verify " + place_);
  EXPECT_EQ(verified.code, 65);
  EXPECT_THAT(verified.text, AllOf(HasSubstr(shard), HasSubstr("tensor 'layers.0.")));
  EXPECT_EQ(command("train --resume " + place_ + "/step-0000000008").code, 65);
  const Ran resumed = command("train --resume auto --save " + place_);
  EXPECT_EQ(resumed.code, 0);
  EXPECT_THAT(resumed.text,
              AllOf(HasSubstr("passed over: " + shard),
                    HasSubstr("resumed " + place_ + "/step-0000000006")));
  EXPECT_EQ(weights_in(resumed.text), weights_in(whole_.text));
  EXPECT_TRUE(fs::exists(place_ + "/damaged-step-0000000008"));
}

TEST(Checkpoint, DivisorOfACsvFile_StaysWithTheWeights) {
  const Folder folder("cli_divisor");
  const std::string rows = "4,0,0\n0,4,1\n4,1,0\n1,4,1\n3,0,0\n0,3,1\n4,2,0\n2,4,1\n";
  const std::string small = folder.write("small.csv", rows);
  const std::string large = folder.write("large.csv", rows + "400,0,0\n");
  const std::string saved = folder.path() + "/saved", weights = folder.path() + "/w.safetensors";
  const std::string train = "train --model mlp:2-8-2 -p 2 -m 2 --batch-size 4 --json --data csv:";
  const auto by = [](int divisor) {
    return HasSubstr("\"feature_divisor\": " + std::to_string(divisor) + ".0,");
  };
  EXPECT_THAT(command(train + small + " --steps 40 --save " + saved).text, by(4));
  EXPECT_EQ(command("checkpoint export " + saved + " --output " + weights).code, 0);
  EXPECT_THAT(command(train + large + " --steps 1").text, by(400));
  EXPECT_THAT(command(train + large + " --steps 1 --weights " + weights).text, by(4));
  EXPECT_THAT(command("train --steps 41 -p 2 --json --resume " + saved).text, by(4));
}

TEST_F(CheckpointCommand, RefusesWhatMakesNoSense) {
  for (const auto& [flags, sentence] :
       {std::pair("--resume auto", "--resume auto: needs --save"),
        {"--save-every 5", "--save-every 5: needs --save"},
        {"--save x --save-every 5m", "must be mini-batches, as 50, or seconds, as 30s"},
        {"--save x --keep 0", "--keep 0: must be from 1"}}) {
    const Ran ran = command(kCheckpointJob + flags);
    EXPECT_EQ(ran.code, 2) << flags;
    EXPECT_THAT(ran.text, HasSubstr(sentence));
  }
  EXPECT_EQ(command("train --resume " + folder_.path() + "/nowhere").code, 65);
  const Ran again = command(kCheckpointJob + "--save " + place_);
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.text, HasSubstr("has checkpoints of another run, the newest of step 8"));
}

TEST_F(CheckpointCommand, FinishedTraining_ResumeEndsWithoutTraining) {
  const std::string files = folder_.path() + "/of-finished";
  fs::create_directory(files);
  const std::string flags = " --profile " + files + "/costs --trace " + files + "/trace --report " +
                            files + "/page.html --log " + files + "/log.jsonl";
  for (const std::string& line : {"train --resume " + place_ + flags,
                                  "train --resume auto --save " + place_ + flags,
                                  "launch -n 2 -- train --resume " + place_ + flags}) {
    const Ran ran = command(line);
    EXPECT_EQ(ran.code, 0) << line << ran.text;
    EXPECT_THAT(ran.text,
                AllOf(HasSubstr("finished at step 8; nothing is left to train\ntest accuracy "),
                      Not(HasSubstr("epoch 1/"))));
    EXPECT_EQ(weights_in(ran.text), weights_in(whole_.text)) << ran.text;
    EXPECT_TRUE(fs::is_empty(files));
  }
  Command told("train --json --resume " + place_);
  const nlohmann::json document = nlohmann::json::parse(told.end().output);
  EXPECT_EQ(document["finished"], true);
  EXPECT_EQ(document["step"], 8);
  EXPECT_EQ(document["weights_hash"], weights_in(whole_.text));
  EXPECT_THAT(command("train --steps 9 --resume " + place_).text,
              HasSubstr("samples/s, 9 updates"));
}

TEST_F(CheckpointCommand, DamagedRunFile_IsNoticedAndPassedOver) {
  const std::string file = place_ + "/step-0000000008/run.json";
  {
    std::fstream run(file, std::ios::in | std::ios::out | std::ios::binary);
    run.seekp(20);
    run.put('\x7F');
  }
  const Ran verified = command("checkpoint verify " + place_);
  EXPECT_EQ(verified.code, 65);
  EXPECT_THAT(verified.text, HasSubstr(file + ": is damaged"));
  EXPECT_EQ(command("train --resume " + place_ + "/step-0000000008").code, 65);
  const Ran resumed = command("train --resume " + place_);
  EXPECT_EQ(resumed.code, 0) << resumed.text;
  EXPECT_THAT(resumed.text, HasSubstr("resumed " + place_ + "/step-0000000006"));
  EXPECT_EQ(weights_in(resumed.text), weights_in(whole_.text));
}

TEST_F(CheckpointCommand, UntypedOptions_ComeFromTheCheckpoint) {
  const std::string other = folder_.path() + "/other";
  const std::string job =
      "train --model mlp:64-16-10 -m 4 --seed 3 -p 2 --schedule zb-h1 --recompute=all --executor "
      "ranks --threads-per-rank 2 --partition 1 ";
  ASSERT_EQ(command(job + "--steps 2 --save " + other).code, 0);
  const Ran resumed = command("train --json --steps 3 --resume " + other);
  EXPECT_EQ(resumed.code, 0) << resumed.text;
  EXPECT_THAT(resumed.text,
              HasSubstr("resumed " + other +
                        "/step-0000000002 with --schedule zb-h1, -p 2, --partition 1, --recompute "
                        "all, --threads-per-rank 2, --executor ranks\n"));
  for (const char* setting : {R"("ranks": 2)", R"("schedule": "zb-h1")", R"("recompute": "all")"})
    EXPECT_THAT(resumed.text, HasSubstr(setting));
  const Ran typed =
      command("train --schedule 1f1b -p 1 --recompute=none --steps 3 --resume " + other);
  EXPECT_EQ(typed.code, 0) << typed.text;
  EXPECT_THAT(typed.text,
              HasSubstr("step-0000000002 with --threads-per-rank 2, --executor ranks\n"));
  const Ran launched = command("launch -n 2 -- train --steps 3 --resume " + other);
  EXPECT_EQ(launched.code, 0) << launched.text;
  EXPECT_THAT(launched.text, HasSubstr(" with --schedule zb-h1, -p 2, "));
  const Ran alone = command("launch -n 1 -- train --steps 3 --resume " + other);
  EXPECT_EQ(alone.code, 0) << alone.text;
}

TEST_F(CheckpointCommand, DefaultRanks_AreAtMostTheLayers) {
  const Ran ran = command("train --model mlp:64-16-10 --steps 1");
  EXPECT_EQ(ran.code, 0) << ran.text;
  EXPECT_EQ(command("train --model mlp:64-16-10 --steps 1 -p 3").code, 2);
}

void await_checkpoint(const std::string& place) {
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (command("checkpoint ls " + place).code != 0 && Clock::now() < deadline)
    std::this_thread::yield();
}

/// Waits until the run has saved once, tells it to stop, and looks where it did.
void expect_saved_by_signal(const std::string& subcommand,
                            const std::string& name,
                            int signal,
                            int times = 1) {
  const Folder folder(name);
  const std::string place = folder.path() + "/saved";
  Command run(subcommand +
              "train --model mlp:64-16-16-10 -p 2 -m 4 --steps 1000000 --lr-schedule constant "
              "--warmup 0 --save " +
              place + " --save-every 1");
  await_checkpoint(place);
  for (int sent = 0; sent < times; ++sent) {
    run.signal(signal);
    run.await_signals();
  }
  const Outcome outcome = run.end();
  EXPECT_EQ(outcome.code, 128 + signal) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("stopped after step "));
  EXPECT_EQ(command("checkpoint verify " + place).code, 0);
}

TEST(CheckpointSignals, SaveTheStateOfTheStepAtHand) {
  expect_saved_by_signal("", "cli_signal_term", SIGTERM);
  expect_saved_by_signal("", "cli_signal_int", SIGINT);
}

/// The signals of a line of a process' status, as a mask.
std::uint64_t mask_in(const std::string& status, const std::string& line) {
  const auto at = status.find(line + ":\t");
  EXPECT_NE(at, std::string::npos) << status;
  return std::stoull(status.substr(at + line.size() + 2), nullptr, 16);
}

/// Both are blocked in every thread but the one that waits for them, and handled by none.
void expect_no_handler(pid_t process) {
  constexpr std::uint64_t kBoth = 1ULL << (SIGTERM - 1) | 1ULL << (SIGINT - 1);
  int waiting = 0;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
    const std::string status = text_of(thread.path() / "status");
    if (status.empty()) continue;  // it has ended
    waiting += (mask_in(status, "SigBlk") & kBoth) == kBoth ? 0 : 1;
    EXPECT_EQ(mask_in(status, "SigCgt") & kBoth, 0U) << status;
  }
  EXPECT_LE(waiting, 1);
}

TEST(CheckpointSignals, NoThreadThatComputes_RunsAHandler) {
  const std::string train =
      "train --model mlp:64-16-16-10 -p 2 -m 4 --steps 1000000 --threads-per-rank 2 --save-every 1 "
      "--save ";
  for (const std::string subcommand : {"", "launch -n 2 -- "}) {
    const Folder folder("cli_signal_handlers");
    Command run(subcommand + train + folder.path() + "/saved");
    await_checkpoint(folder.path() + "/saved");
    const auto ranks = subcommand.empty() ? std::vector{run.process()} : run.workers(2);
    for (const pid_t rank : ranks) expect_no_handler(rank);
    run.signal(SIGTERM);
    EXPECT_EQ(run.end().code, 143);
  }
}

TEST(CheckpointSignals, AreOneWishWhereTheyComeInARow) {
  expect_saved_by_signal("", "cli_signal_row", SIGTERM, 5);
}

TEST(CheckpointSignals, SaveTheStateOfAllRanks) {
  expect_saved_by_signal("launch -n 2 -- ", "cli_signal_launch", SIGTERM);
  expect_saved_by_signal("launch -n 1 -- ", "cli_signal_places", SIGTERM);
}

TEST(StoredCheckpoint, Resume_TakesEverySetting) {
  const std::string stored = MILLRACE_SOURCE_DIR "/tests/training/data/adamw";
  const Ran resumed = command("train --json --resume " + stored);
  ASSERT_EQ(resumed.code, 0) << resumed.text;
  EXPECT_THAT(resumed.text, Not(HasSubstr("changed")));
  const Ran typed = command(
      "train --json --model mlp:64-10-10,norm=batch -p 2 -m 4 --accumulate 2 --accumulate-order "
      "tree --steps 6 --batch-size 48 --last-batch drop --seed 3 --clip-norm 0.5 --weight-decay "
      "0.05 --lr 0.02 --lr-schedule cosine:floor=0.1 --warmup 3 --parameters *.bias:lr=0.5 "
      "--beta2 0.98 --max-skipped 7");
  ASSERT_EQ(typed.code, 0) << typed.text;
  EXPECT_EQ(json_in(resumed.text)["settings"], json_in(typed.text)["settings"]);
}

}  // namespace
}  // namespace millrace::test
