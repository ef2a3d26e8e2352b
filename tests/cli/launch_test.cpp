// Processes: the same bits as one process, the same reports, and refusals of what cannot be meant.
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/launched.hpp"
#include "millrace/transport/private_directory.hpp"

namespace millrace {
namespace {

using test::Command;
using test::Outcome;
using test::run;
using test::temporary;
using test::worker;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

std::string hash_of(const Outcome& outcome) {
  if (outcome.code != 0) return "exit " + std::to_string(outcome.code) + ": " + outcome.errors;
  return nlohmann::json::parse(outcome.output).at("weights_hash");
}

TEST(Launch, EveryScheduleAndEndpoint_SameBits) {
  const std::string one = hash_of(run(test::kThreeSteps));
  ASSERT_EQ(one.size(), 32U) << one;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"})
    for (const int ranks : {2, 3, 4})
      for (const char* link : {"shm", "ipc", "tcp"}) {
        const Outcome outcome = run("launch -n " + std::to_string(ranks) + " --endpoint " + link +
                                    " -- " + test::kThreeSteps + " --schedule " + schedule);
        EXPECT_EQ(hash_of(outcome), one) << schedule << " on " << ranks << " ranks over " << link;
      }
}

TEST(Launch, SeveralPasses_SameBits) {
  const std::string job = "train --json --steps 3 --batch-size 64 ";
  const std::string passes = job + "-m 4 --accumulate 3";
  const std::string one = hash_of(run(job + "-m 12"));
  ASSERT_EQ(one.size(), 32U) << one;
  EXPECT_EQ(hash_of(run("launch -n 3 --endpoint ipc -- " + passes)), one);
  EXPECT_EQ(hash_of(run("launch -n 2 --endpoint tcp -- " + passes + " --schedule gpipe")), one);
  EXPECT_EQ(hash_of(run("launch -n 2 --endpoint ipc -- " + passes + " --schedule chimera")),
            hash_of(run(job + "-m 12 -p 2 --schedule chimera")));
}

TEST(Launch, DataParallelReplicas_SameBits) {
  const std::string job = "train --json --steps 3 --batch-size 72 ";
  const std::string one = hash_of(run(job + "-p 1 -m 8 --accumulate-order tree"));
  ASSERT_EQ(one.size(), 32U) << one;
  EXPECT_EQ(hash_of(run("launch -n 4 --endpoint ipc -- " + job + "-d 2 -m 4")), one);
  EXPECT_EQ(hash_of(run("launch -n 4 --endpoint tcp -- " + job + "-d 2 -m 4 --schedule zb-v")),
            one);
  EXPECT_EQ(hash_of(run("launch -n 4 --endpoint mixed -- " + job + "-d 4 -m 2")), one);
}

TEST(Launch, UnevenReplicas_AreRejected) {
  EXPECT_THAT(run("launch -n 3 -- train -d 2").errors,
              HasSubstr("-d 2: 3 processes are not shared evenly by the replicas"));
}

TEST(Launch, TensorsUsedInPlace_SameBits) {
  const std::string large =
      "train --json --steps 8 --batch-size 512 -m 4 --model mlp:64-301-301-301-10";
  const std::string one = hash_of(run(large + " -p 1"));
  ASSERT_EQ(one.size(), 32U) << one;
  for (const char* schedule : {"gpipe", "1f1b"})
    for (const char* link : {"shm", "ipc", "tcp", "mixed"})
      EXPECT_EQ(hash_of(run("launch -n 3 --endpoint " + std::string(link) + " -- " + large +
                            " --schedule " + schedule)),
                one)
          << schedule << " over " << link;
}

/// 128 rows of 301 numbers, 4 under way or kept each way.
TEST(Launch, SharesTheMemoryThatThePlanForetells) {
  const Outcome outcome = run(
      "launch -n 3 --endpoint shm -- train --json --steps 2 --batch-size 512 -m 4 --schedule gpipe "
      "--model mlp:64-301-301-301-10");
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const auto shared = nlohmann::json::parse(outcome.output).at("shared_bytes");
  const std::size_t slots = std::size_t{4} * 163'840;
  EXPECT_EQ(shared.at("counted"), (nlohmann::json{slots, 2 * slots, slots}));
  EXPECT_EQ(shared.at("predicted"), shared.at("counted"));
}

/// Five stages of nine layers: edges to neighbours' neighbours, and tensors with several users.
TEST(Launch, BranchedModel_HasBitsOfOneProcess) {
  const std::string branches =
      std::string(test::kThreeSteps) + " --model mlp:64-24-24-24-24-10,residual,dropout=0.1";
  const std::string one = hash_of(run(branches + " -p 1 --executor sequential"));
  ASSERT_EQ(one.size(), 32U) << one;
  EXPECT_EQ(hash_of(run(branches + " -p 5")), one);
  for (const char* schedule : {"1f1b", "zb-h1"})
    for (const char* link : {"shm", "ipc", "tcp"})
      EXPECT_EQ(hash_of(run("launch -n 5 --endpoint " + std::string(link) + " -- " + branches +
                            " --schedule " + schedule)),
                one)
          << schedule << " over " << link;
}

TEST(Launch, NoSharedMemory_FallsBackToIpc) {
  const std::string job = "launch -n 2 -- train --json --steps 2 --batch-size 64";
  const Outcome usual = run(job);
  // The shell that the program starts gets the command as its words.
  const Outcome without =
      run(job, MILLRACE_BINARY_DIR "/tests/without_memory_files sh -c '\"$@\"' sh ");

  EXPECT_EQ(hash_of(without), hash_of(usual));
  EXPECT_THAT(without.errors,
              HasSubstr("millrace launch: the ranks use ipc: the system has no memory files: "
                        "Function not implemented\n"));
  EXPECT_THAT(usual.errors, Not(HasSubstr("ipc")));
}

TEST(Launch, BidirectionalSchedule_SameBits) {
  const std::string copies = std::string(test::kThreeSteps) + " --schedule chimera -p 2";

  EXPECT_EQ(hash_of(run("launch -n 2 -- " + copies)), hash_of(run(copies)));
}

/// The lines of epochs up to the learning rate: what does not depend on the machine's speed.
std::vector<std::string> epochs_told(const std::string& text) {
  std::istringstream lines(text);
  std::vector<std::string> told;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("epoch "))
      told.push_back(line.substr(0, line.find("  ", line.find("lr "))));
  return told;
}

TEST(Launch, ReportsEpochsAsOneProcessDoes) {
  const std::string job = "train --epochs 2 --batch-size 64 -m 8 --model mlp:64-24-10";
  const Outcome one = run(job + " -p 2"), two = run("launch -n 2 -- " + job);

  EXPECT_EQ(epochs_told(two.output), epochs_told(one.output));
  EXPECT_THAT(
      epochs_told(two.output),
      ElementsAre(StartsWith("epoch 1/2  step 23  loss "), StartsWith("epoch 2/2  step 46  ")));
  EXPECT_THAT(two.output, HasSubstr(" samples/s  bubble of rank 0 "));
}

TEST(Launch, DryRun_PrintsThatOfOneProcess) {
  const std::string job = "train --epochs 2 --model mlp:64-24-10 ";
  const std::string one = run(job + "-p 2 --dry-run").output;

  EXPECT_EQ(run("launch -n 2 -- " + job + "--dry-run").output, one);
  EXPECT_EQ(run("launch -n 2 --dry-run -- " + job).output, one);
  EXPECT_EQ(run("launch -n 2 --dry-run -- sleep 1").output,
            "dry run: 2 processes of sleep would start; none was\n");
}

TEST(Launch, MeasuresEveryRankAsOneProcessDoes) {
  const PrivateDirectory place(temporary());
  const std::string trace = place.path() + "/trace.json";
  const Outcome outcome = run("launch -n 3 -- " + std::string(test::kThreeSteps) + " --trace " +
                              trace + " --svg " + place.path() + "/steps.svg");
  ASSERT_EQ(outcome.code, 0) << outcome.errors;

  const auto many = nlohmann::json::parse(outcome.output);
  const auto one = nlohmann::json::parse(run(std::string(test::kThreeSteps) + " -p 3").output);
  EXPECT_EQ(many.at("peak_stash_bytes"), one.at("peak_stash_bytes"));
  EXPECT_EQ(many.at("peak_stash_bytes").at("counted"), many.at("peak_stash_bytes").at("predicted"));
  for (const char* kind : {"measured", "simulated"}) {
    const auto& bubble = many.at("bubble").at(kind);
    EXPECT_EQ(bubble.at("per_rank").size(), 3U);
    for (const double share : bubble.at("per_rank")) {
      EXPECT_GT(share, 0) << kind;
      EXPECT_LT(share, 1) << kind;
    }
  }
  std::set<int> rows;
  const auto timeline = nlohmann::json::parse(test::text_of(trace));
  for (const auto& event : timeline.at("traceEvents"))
    if (event.at("ph") == "X") rows.insert(event.at("tid").get<int>());
  EXPECT_EQ(rows, (std::set<int>{0, 1, 2}));
  EXPECT_THAT(test::text_of(place.path() + "/steps.svg"), HasSubstr("<svg"));
}

TEST(Launch, OnlyEndStages_OpenTheData) {
  const PrivateDirectory there(temporary());
  const PrivateDirectory empty(temporary());
  std::ofstream samples(there.path() + "/samples.csv");
  for (int i = 0; i < 60; ++i) samples << i % 7 << ',' << i % 5 << ',' << i % 3 << '\n';
  samples.close();
  const std::string work =
      "train --json --steps 4 --data csv:samples.csv --model mlp:2-4-4-3 --batch-size 16";
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(empty.path());  // where there is no samples.csv
  Command middle(worker(there, 1, 3, work));
  std::filesystem::current_path(there.path());
  Command last(worker(there, 2, 3, work));
  const Outcome first = run(worker(there, 0, 3, work));
  std::filesystem::current_path(here);

  EXPECT_EQ(first.code, 0) << first.errors;
  EXPECT_EQ(middle.end().code, 0);
  EXPECT_EQ(last.end().code, 0);
  EXPECT_EQ(nlohmann::json::parse(first.output).at("updates"), 4);
}

TEST(Launch, WhatRankZeroSaysIsSaidOnce) {
  const Outcome outcome = run("launch -n 1 -- train --data nowhere --steps 1");
  const std::string sentence = "unknown data 'nowhere'";
  const auto first = outcome.errors.find(sentence);

  EXPECT_EQ(outcome.code, 2);
  ASSERT_NE(first, std::string::npos) << outcome.errors;
  EXPECT_EQ(outcome.errors.find(sentence, first + 1), std::string::npos) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("millrace launch: rank 0 ended with exit code 2"));
}

TEST(Launch, DifferentWorkers_NameTheField) {
  // Two workers by hand, as an engine would start them, with different seeds.
  const PrivateDirectory place(temporary());
  Command other(worker(place, 1, 2, "train --steps 1 --seed 2"));
  const Outcome mine = run(worker(place, 0, 2, "train --steps 1 --seed 1"));

  EXPECT_EQ(mine.code, 78);
  EXPECT_THAT(mine.errors, HasSubstr("seed differs: rank 0 has '1', rank 1 has '2'"));
  EXPECT_EQ(other.end().code, 78);
}

TEST(Doctor, FindsThatRanksCanTalk) {
  const Outcome outcome = run("doctor");

  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("ok    tcp on 127.0.0.1 with keys"));
}

TEST(Launch, InvalidOptions_ExitWith2) {
  for (const auto& [arguments, sentence] : std::vector<std::pair<std::string, std::string>>{
           {"-n 2 -- train -p 3", "-p 3: 2 processes for 3 places; 1 or 3 would have as many each"},
           {"-n 0 -- train", "-n 0: must be from 1 to 4096"},
           {"-n 2 --endpoint smoke -- train",
            "--endpoint smoke: must be one of auto, shm, ipc, tcp"},
           {"-n 2 -- plan", "'plan': there is no such program; ranks train, doctor, or run a prog"},
           {"-n 2 -- train --stpes 3", "--stpes: not an option of train; did you mean --steps?"},
           {"-n 2 -- train --steps x", "--steps x: must be an integer"},
           {"-n 2 --heartbeat-timeout 0 -- train",
            "--heartbeat-timeout 0: must be from 0.001 to 1000000 seconds"},
           {"-n 2 --log-dir /proc/x -- train", "--log-dir /proc/x: cannot be made"},
           {"-n 2 -- train --partition time", "--partition time: every process would"},
           {"-n 4 -- train -p 1", "-p 1: 4 processes for 1 place; 1 would have as many each"},
           {"-n 100 -- train", "-n 100: the model has 8 layers, so at most 8"},
           {"-n 9 -- train --schedule interleaved", "-n 9 with 2 chunks each: the model has 8"},
           {"-n 100 -- train -p 100", "-p 100: the model has 8 layers, so at most 8"},
           {"-n 2 -- train --executor sequential", "--executor sequential: must be ranks"},
           {"-n 2 --hartbeat-timeout 3 -- train",
            "--hartbeat-timeout: not an option of launch; did you mean --heart"},
           {"-n 2 train --insecur", "--insecur: not an option of launch; did you mean --insecure?"},
           {"-n 4 train --epochs 1",
            "--epochs: not an option of launch; options of train come after --: "
            "launch -n 4 -- train --epochs ..."},
           {"--batch-size=8 -n 3 -- train", "--batch-size: not an option of launch; options of tr"},
           {"-n 2 doctor --json",
            "--json: not an option of launch; options of doctor come after --: "
            "launch -n 2 -- doctor --json ..."}}) {
    const Outcome outcome = run("launch " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.errors, StartsWith("millrace: " + sentence));
    EXPECT_EQ(std::count(outcome.errors.begin(), outcome.errors.end(), '\n'), 1) << outcome.errors;
    EXPECT_EQ(outcome.output, "");
  }
}

TEST(Launch, ATemporaryDirectoryThatIsNotThereIsNamed) {
  const Outcome outcome = run("launch -n 2 -- train --steps 1", "TMPDIR=/nonexistent; ");

  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.errors,
            "millrace: TMPDIR=/nonexistent: the job has no place for its files: "
            "No such file or directory\n");
}

TEST(Launch, AnAddressOfAnotherMachineIsNamed) {
  // 203.0.113.0/24 is for documentation: no machine has such an address.
  const Outcome outcome =
      run("launch -n 2 --endpoint tcp --interface 203.0.113.77 --grace 1 -- train --steps 1");

  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("cannot listen at 203.0.113.77"));
  EXPECT_THAT(outcome.errors, HasSubstr("is it an address of this machine?"));
}

TEST(Launch, AllFlags_PrintJsonAndKeepLogs) {
  const PrivateDirectory place(temporary());
  const std::string logs = place.path() + "/logs";
  const Outcome outcome =
      run("launch -n 3 --endpoint tcp --interface 127.0.0.1 --bind-cores --grace 3 "
          "--heartbeat-timeout 8 "
          "--action-timeout 8 --join-timeout 30 --log-dir " +
          logs + " -- " + test::kThreeSteps);

  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(hash_of(outcome), hash_of(run(test::kThreeSteps)));
  using std::filesystem::perms;
  for (const char* rank : {"0", "1", "2"})
    EXPECT_EQ(std::filesystem::status(logs + "/rank-" + rank + ".log").permissions(),
              perms::owner_read | perms::owner_write)
        << rank;
  EXPECT_THAT(test::text_of(logs + "/rank-0.log"), HasSubstr("epoch 1/1  step "));
}

const std::string kAttempt = "=== attempt 1, [-0-9]+ [:0-9]+ UTC ===\n";

TEST(Launch, RankLogs_RecordExit_StderrStaysEmpty) {
  Command command("launch -n 2 --log-dir LOGS -- train --steps 1 --schedule interleaved -m 4");
  const auto workers = command.workers(2);
  ASSERT_EQ(workers.size(), 2U);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.errors, "");
  EXPECT_THAT(outcome.output, EndsWith("\n2 processes\n"));
  EXPECT_THAT(command.log(0),
              MatchesRegex(kAttempt + "rank 0: process " + std::to_string(workers[0]) +
                           "; .*\nrank 0 ended with exit code 0\n"));
  EXPECT_THAT(
      command.log(1),
      MatchesRegex(kAttempt + "rank 1 of 2: stages 1,3, process " + std::to_string(workers[1]) +
                   "\nrank 1: done after 1 update in [0-9]+\\.[0-9] s\n"));
}

TEST(Launch, RestartedLogs_KeepEarlierAttempts) {
  const PrivateDirectory place(temporary());
  const auto attempt = [&](const std::string& ranks, const std::string& word) {
    return run("launch -n " + ranks + " --log-dir " + place.path() + " -- sh -c 'echo " + word +
               " >&2; exit 3'");
  };
  EXPECT_EQ(attempt("3", "first").code, 3);
  const Outcome second = attempt("2", "second");
  EXPECT_EQ(attempt("2", "third").code, 3);

  for (const char* rank : {"0", "1"}) {
    const std::string log = test::text_of(place.path() + "/rank-" + rank + ".log");
    EXPECT_THAT(log,
                ContainsRegex("=== attempt 1, .*first.*=== attempt 2, .*second.*=== attempt 3, "
                              ".*third"));
  }
  EXPECT_THAT(second.errors, Not(HasSubstr("first")));  // the end of a log is of this attempt
  EXPECT_FALSE(std::filesystem::exists(place.path() + "/rank-2.log"));
  EXPECT_THAT(test::text_of(place.path() + "/rank-2.before-attempt-2.log"), HasSubstr("first"));
}

TEST(Launch, NamedPipeAsLog_IsRefused) {
  const PrivateDirectory place(temporary());
  ASSERT_EQ(::mkfifo((place.path() + "/rank-1.log").c_str(), 0600), 0);
  const Outcome outcome = run("launch -n 2 --log-dir " + place.path() + " -- train --steps 1");

  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("rank-1.log cannot be written: it is a named pipe"));
}

TEST(Launch, TheHelpForItsRanksOffersNoExecutor) {
  EXPECT_THAT(run("train --help").output, HasSubstr("--executor"));
  EXPECT_THAT(run("launch -n 2 -- train --help").output, Not(HasSubstr("--executor")));
}

TEST(Launch, ASingleProcessIsCountedAsOne) {
  EXPECT_THAT(run("launch -n 1 -- train --steps 1").output, EndsWith("\n1 process\n"));
}

}  // namespace
}  // namespace millrace
