// Ranks that are killed, stopped and slowed down at random moments, from the hand-shake to the
// exit. MILLRACE_ROUNDS (the long campaign sets it) says how often; the suite does a handful.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <sys/prctl.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/launched.hpp"
#include "millrace/core/random.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using test::all_gone;
using test::Clock;
using test::Command;
using test::Outcome;
using testing::AnyOf;
using testing::HasSubstr;

constexpr std::uint32_t kRanks = 4;
constexpr const char* kTrain =
    "-- train --json --steps 150 --batch-size 64 --model mlp:64-24-24-24-10";

std::uint32_t rounds(std::uint32_t few) {
  const char* said = std::getenv("MILLRACE_ROUNDS");  // NOLINT(concurrency-mt-unsafe)
  return said == nullptr ? few : static_cast<std::uint32_t>(std::stoul(said));
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void pause(std::chrono::microseconds time) {
  ::timespec span{time.count() / 1'000'000, 1000 * (time.count() % 1'000'000)};
  ::nanosleep(&span, nullptr);
}

/// One disturbed job.
struct Round {
  std::uint32_t number = 0;
  std::size_t victim = 0;
  std::chrono::microseconds moment{};  ///< after the last worker was started
  Outcome outcome;
  std::vector<std::string> logs;      ///< by rank
  Clock::duration took{};             ///< from the disturbance to the end of everything
  std::vector<Clock::duration> ends;  ///< by rank: from the disturbance to the end of the process

  [[nodiscard]] bool finished() const { return has(outcome.output, "weights_hash"); }
  /// From here on rank 0 has work of its own, and the others may have ended theirs.
  [[nodiscard]] bool trained() const { return finished() || has(logs[0], "epoch 7/7"); }

  [[nodiscard]] std::string describe() const {
    std::string text = "round " + std::to_string(number) + ", rank " + std::to_string(victim) +
                       " after " + std::to_string(moment.count()) + " us, code " +
                       std::to_string(outcome.code) + "\n" + outcome.errors;
    for (const std::string& log : logs) text += "\n--- " + log;
    return text;
  }
};

/// What is disturbed: flags of the launch, and copies of the pipeline.
struct Job {
  std::string flags = {};
  std::size_t copies = 1;

  [[nodiscard]] std::string launch() const {
    return "launch -n " + std::to_string(kRanks) + " --log-dir LOGS " + flags + " " + kTrain +
           " --data-parallel " + std::to_string(copies);
  }

  /// "of stage 1,": what is said of a rank's own actions.
  [[nodiscard]] std::string place(std::size_t rank) const {
    return "of stage " + std::to_string(rank % (kRanks / copies)) + ",";
  }
};

/// Microseconds that an undisturbed job takes after its last worker was started: the least of
/// three, or a machine that was busy for one of them would have most disturbances come too late.
std::uint32_t usual_time(const Job& job) {
  auto least = Clock::duration::max();
  for (int i = 0; i < 3; ++i) {
    Command command(Job{.copies = job.copies}.launch());
    static_cast<void>(command.workers(kRanks));
    const auto start = Clock::now();
    EXPECT_EQ(command.end().code, 0);
    least = std::min<Clock::duration>(least, Clock::now() - start);
  }
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(least).count());
}

Round disturb(std::uint32_t number, std::uint32_t usual, int signal, const Job& job) {
  const RandomKey key{.seed = static_cast<std::uint64_t>(signal), .purpose = Purpose::Test};
  Round round;
  round.number = number;
  round.victim = random_below(key, 2 * number, kRanks);
  round.moment = std::chrono::microseconds(random_below(key, 2 * number + 1, usual));
  Command command(job.launch());
  const auto workers = command.workers(kRanks);
  EXPECT_EQ(workers.size(), kRanks);
  if (workers.size() != kRanks) return round;
  test::Watch watch(workers);
  pause(round.moment);
  ::kill(workers[round.victim], signal);
  const auto start = Clock::now();
  for (const auto end : watch.ends()) round.ends.push_back(end - start);
  round.outcome = command.end();
  round.took = Clock::now() - start;
  for (std::size_t rank = 0; rank < kRanks; ++rank) round.logs.push_back(command.log(rank));
  EXPECT_TRUE(all_gone(workers)) << round.describe();
  return round;
}

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// Disturbs one job after the other. `judge` looks at those that were not done before; it stops at
/// the first in which something is wrong.
template <class Judge>
void disturb_all(std::uint32_t number, int signal, const Job& job, const Judge& judge) {
  const std::uint32_t usual = usual_time(job);
  Clock::duration slowest{};
  int late = 0;
  for (std::uint32_t i = 0; i < number && !testing::Test::HasFailure(); ++i) {
    const Round round = disturb(i, usual, signal, job);
    if (round.outcome.code == 0) {
      EXPECT_TRUE(round.finished()) << round.describe();
      ++late;
      continue;
    }
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      if (rank != round.victim) slowest = std::max(slowest, round.ends[rank]);
    judge(round);
  }
  std::cout << number << " times, " << late << " of them after the end; the slowest survivor took "
            << seconds(slowest) << " s\n";
}

/// Calls body(log, time until the end) for every survivor that did not get its work done.
template <class Body>
void each_survivor(const Round& round, const Body& body) {
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const std::string& log = round.logs[rank];
    if (rank == round.victim || (round.trained() && !has(log, "millrace: "))) continue;
    SCOPED_TRACE("rank " + std::to_string(rank) + "; " + round.describe());
    body(log, round.ends[rank]);
  }
}

void kill_ranks(std::uint32_t number, const Job& job) {
  disturb_all(number, SIGKILL, job, [](const Round& round) {
    const std::string victim = std::to_string(round.victim);
    EXPECT_EQ(round.outcome.code, 69) << round.describe();
    EXPECT_LT(round.took, 2s) << round.describe();
    each_survivor(round, [&](const std::string& log, Clock::duration end) {
      EXPECT_LT(end, 2s);
      EXPECT_THAT(
          log,
          AnyOf(HasSubstr("lost rank " + victim +
                          ": its connection ended; everyone waits for rank " + victim + ": "),
                HasSubstr("lost a rank before all had met: rank " + victim +
                          " was ended by signal 9")));
    });
  });
}

TEST(Campaign, KilledRank_SurvivorsNameItInTwoSeconds) {
  for (const char* link : {"--endpoint shm", "--endpoint ipc"})
    kill_ranks(rounds(2), {.flags = std::string("--grace 20 ") + link});
}

TEST(Campaign, KilledGridRank_IsNamedWithinTwoSeconds) {
  for (const char* link : {"--endpoint shm", "--endpoint tcp", "--endpoint mixed"})
    kill_ranks(rounds(2), {.flags = std::string("--grace 20 ") + link, .copies = 2});
}

/// "F of stage 1, micro-batch 3 of step 7" out of a report, or nothing.
std::string action_in(const std::string& log, const std::string& victim) {
  const std::string before = "everyone waits for rank " + victim + ": ";
  const auto at = log.find(before);
  if (at == std::string::npos) return {};
  const auto from = at + before.size();
  // A rank that has not begun to train does not know the data-parallel replicas yet.
  return log.substr(from, std::min(log.find(", since", from), log.find(" (data-", from)) - from);
}

void stop_ranks(std::uint32_t number, const Job& job) {
  constexpr auto kSilence = 1s;
  constexpr auto kPatience = 2s;
  int before = 0;
  disturb_all(number, SIGSTOP, job, [&](const Round& round) {
    const std::string victim = std::to_string(round.victim);
    EXPECT_EQ(round.outcome.code, 75) << round.describe();
    std::set<std::string> actions;
    bool met = true;
    each_survivor(round, [&](const std::string& log, Clock::duration end) {
      const std::string action = action_in(log, victim);
      // Of ranks that come late on a busy machine the launch may know before their patience ends.
      const bool told =
          has(log, "lost a rank before all had met: rank " + victim + " was stopped (signal 19)");
      EXPECT_TRUE(told || !action.empty()) << "does not name rank " << victim;
      // Before all have met there is no stage yet, and another deadline: patience begins again with
      // every rank that comes.
      const bool meeting = told || action == "its welcome" || action == "its hello";
      EXPECT_LT(end, (meeting ? 2 * kPatience : kSilence) + 2s);
      met = met && !meeting;
      if (!meeting) actions.insert(action);
    });
    if (!met) ++before;
    EXPECT_LE(actions.size(), 1U) << round.describe();
    // One stage per rank: an action of a stage is one of the victim's.
    for (const std::string& action : actions)
      EXPECT_TRUE(!has(action, " of stage") || has(action, "gradients of stage") ||
                  has(action, job.place(round.victim)))
          << action;
  });
  std::cout << before << " of them before all had met\n";
}

const std::string kStopFlags = "--heartbeat-timeout 1 --join-timeout 2 --grace 2.5";

TEST(Campaign, StoppedRank_IsNamedByAllWithinTwoSeconds) {
  for (const char* link : {" --endpoint shm", " --endpoint ipc"})
    stop_ranks(rounds(1), {.flags = kStopFlags + link});
}

TEST(Campaign, StoppedGridRank_IsNamedWithItsReplica) {
  for (const char* link : {" --endpoint shm", " --endpoint tcp", " --endpoint mixed"})
    stop_ranks(rounds(1), {.flags = kStopFlags + link, .copies = 2});
}

/// A training that saves each mini-batch, ended at random moments once it has begun.
void terminate_at_random(const std::string& train, std::uint32_t number) {
  constexpr std::uint32_t kMilliseconds = 400;
  for (std::uint32_t i = 0; i < number && !testing::Test::HasFailure(); ++i) {
    const testing_files::Folder folder("campaign_terminated");
    const std::string place = folder.path() + "/saved";
    const std::uint32_t moment =
        random_below({.seed = 15, .purpose = Purpose::Test}, i, 1000 * kMilliseconds);
    SCOPED_TRACE(train + ", round " + std::to_string(i) + ": " + std::to_string(moment) + " us");
    Command run(train + " --steps 1000000 --lr-schedule constant --warmup 0 --save " + place +
                " --save-every 1 --log " + folder.path() + "/log.jsonl");
    while (test::text_of(folder.path() + "/log.jsonl").empty() && !run.has_ended())
      std::this_thread::yield();
    pause(std::chrono::microseconds(moment));
    run.signal(SIGTERM);
    const Outcome outcome = run.end();
    EXPECT_EQ(outcome.code, 143) << outcome.errors;
    EXPECT_THAT(outcome.errors, HasSubstr("newest checkpoint " + place));
    const Outcome resumed = test::run(train + " --steps 1 --resume " + place);
    EXPECT_THAT(resumed.errors, HasSubstr("resumed " + place));
  }
}

TEST(Terminations, EndWith143AndACheckpointThatResumes) {
  const std::string gpt =
      "train --data text --model gpt:layers=2,d=64,heads=4,context=32 -p 2 -m 4 --batch-size 16";
  const std::string conv = "train --model conv:8x8x1-16-32-10 -p 2 -m 4";
  for (const std::string& train : {gpt, conv, "launch -n 2 -- " + gpt})
    terminate_at_random(train, rounds(2));
}

TEST(Campaign, RankTenTimesSlower_NoFalseAlarm) {
  // Stopped for nine tenths of the time.
  const std::string job = " -- train --json --batch-size 64 --model mlp:64-8-8-10 --steps " +
                          std::to_string(100 * rounds(1));
  const Outcome alone = test::run("launch -n 3" + job);
  Command command("launch -n 3 --heartbeat-timeout 1 --action-timeout 1" + job);
  const auto workers = command.workers(3);
  ASSERT_EQ(workers.size(), 3U);
  std::jthread brake([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      ::kill(workers[1], SIGSTOP);
      pause(9ms);
      ::kill(workers[1], SIGCONT);
      pause(1ms);
    }
  });
  command.await_end();
  brake.request_stop();
  brake.join();
  const Outcome slowed = command.end();

  ASSERT_EQ(slowed.code, 0) << slowed.errors;
  EXPECT_EQ(nlohmann::json::parse(slowed.output).at("weights_hash"),
            nlohmann::json::parse(alone.output).at("weights_hash"));
}

/// Processes that want a core all the time.
class Load {
 public:
  explicit Load(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t process = ::fork();
      if (process == 0) spin();
      processes_.push_back(process);
    }
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load() {
    for (const pid_t process : processes_) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
  }

 private:
  [[noreturn]] static void spin() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile unsigned turns = 0;;) turns = turns + 1;
  }

  std::vector<pid_t> processes_;
};

TEST(Campaign, ALoadOfSixteenIsNoFalseAlarm) {
  const std::string job = " train --json --batch-size 64 --steps " +
                          std::to_string(200 * rounds(1)) + " --model mlp:64-8-8-10";
  const Outcome alone = test::run(job + " --ranks 3");
  const Load load(16);
  const Outcome loaded = test::run("launch -n 3 --" + job);

  ASSERT_EQ(loaded.code, 0) << loaded.errors;
  EXPECT_EQ(nlohmann::json::parse(loaded.output).at("weights_hash"),
            nlohmann::json::parse(alone.output).at("weights_hash"));
}

}  // namespace
}  // namespace millrace
