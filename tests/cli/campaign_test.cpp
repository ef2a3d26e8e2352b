// Ranks that are killed, stopped and slowed down at random moments, from the hand-shake to the
// exit. MILLRACE_ROUNDS (the long campaign sets it) says how often; the suite does a handful.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/launched.hpp"
#include "millrace/core/random.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using test::all_gone;
using test::Clock;
using test::Command;
using test::Outcome;
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
  std::vector<std::string> logs;  ///< by rank
  Clock::duration took{};         ///< from the disturbance to the end of everything

  [[nodiscard]] bool finished() const { return has(outcome.output, "weights_hash"); }

  [[nodiscard]] std::string describe() const {
    std::string text = "round " + std::to_string(number) + ", rank " + std::to_string(victim) +
                       " after " + std::to_string(moment.count()) + " us, code " +
                       std::to_string(outcome.code) + "\n" + outcome.errors;
    for (const std::string& log : logs) text += "\n--- " + log;
    return text;
  }
};

std::string launch(const std::string& flags) {
  return "launch -n " + std::to_string(kRanks) + " --log-dir LOGS " + flags + " " + kTrain;
}

/// Microseconds that an undisturbed job takes after its last worker was started.
std::uint32_t usual_time() {
  Command command(launch(""));
  static_cast<void>(command.workers(kRanks));
  const auto start = Clock::now();
  EXPECT_EQ(command.end().code, 0);
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count());
}

Round disturb(std::uint32_t number, std::uint32_t usual, int signal, const std::string& flags) {
  const RandomKey key{.seed = static_cast<std::uint64_t>(signal), .purpose = Purpose::Test};
  Round round;
  round.number = number;
  round.victim = random_below(key, 2 * number, kRanks);
  round.moment = std::chrono::microseconds(random_below(key, 2 * number + 1, usual));
  Command command(launch(flags));
  const auto workers = command.workers(kRanks);
  EXPECT_EQ(workers.size(), kRanks);
  if (workers.size() != kRanks) return round;
  pause(round.moment);
  ::kill(workers[round.victim], signal);
  const auto start = Clock::now();
  round.outcome = command.end();
  round.took = Clock::now() - start;
  for (std::size_t rank = 0; rank < kRanks; ++rank) round.logs.push_back(command.log(rank));
  EXPECT_TRUE(all_gone(workers)) << round.describe();
  return round;
}

/// Every survivor said who is lost; one that says nothing had done its work.
void expect_named(const Round& round, const std::vector<std::string>& ways) {
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    if (rank == round.victim) continue;
    const std::string& log = round.logs[rank];
    const bool named =
        std::any_of(ways.begin(), ways.end(), [&](const auto& way) { return has(log, way); });
    EXPECT_TRUE(named || (round.finished() && !has(log, "millrace: ")))
        << "rank " << rank << " does not name it; " << round.describe();
  }
}

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

TEST(Campaign, AKilledRankIsNamedByEverySurvivorWithinTwoSeconds) {
  const std::uint32_t usual = usual_time();
  Clock::duration slowest{};
  int late = 0;
  for (std::uint32_t i = 0; i < rounds(4); ++i) {
    const Round round = disturb(i, usual, SIGKILL, "--grace 20");
    const std::string victim = std::to_string(round.victim);
    slowest = std::max(slowest, round.took);
    if (round.outcome.code == 0) {
      EXPECT_TRUE(round.finished()) << round.describe();
      ++late;
      continue;
    }
    EXPECT_EQ(round.outcome.code, 69) << round.describe();
    EXPECT_LT(round.took, 2s) << round.describe();
    expect_named(
        round,
        {"lost rank " + victim + ": its connection ended; everyone waits for rank " + victim,
         "lost a rank before all had met: rank " + victim + " was ended by signal 9"});
    if (HasFailure()) return;
  }
  std::cout << rounds(4) << " kills, " << late << " of them after the end; slowest end "
            << seconds(slowest) << " s\n";
}

/// "F of stage 1, micro-batch 3 of step 7" out of a report, or nothing.
std::string action_in(const std::string& log, const std::string& victim) {
  const std::string before = "everyone waits for rank " + victim + ": ";
  const auto at = log.find(before);
  if (at == std::string::npos) return {};
  const auto from = at + before.size();
  return log.substr(from, log.find(", since", from) - from);
}

TEST(Campaign, AStoppedRankIsNamedByEverySurvivorWithOneAction) {
  const std::uint32_t usual = usual_time();
  Clock::duration slowest{};
  int late = 0;
  int before = 0;
  for (std::uint32_t i = 0; i < rounds(2); ++i) {
    const Round round = disturb(i, usual, SIGSTOP, "--silence 1 --patience 2 --grace 1");
    const std::string victim = std::to_string(round.victim);
    slowest = std::max(slowest, round.took);
    if (round.outcome.code == 0) {
      EXPECT_TRUE(round.finished()) << round.describe();
      ++late;
      continue;
    }
    EXPECT_EQ(round.outcome.code, 75) << round.describe();
    EXPECT_LT(round.took, 1s + 2s + 2s) << round.describe();
    expect_named(round,
                 {"rank " + victim + " is silent; everyone waits for rank " + victim,
                  "missing rank " + victim,
                  victim == "0" ? "rank 0 does not answer" : "missing"});
    std::set<std::string> actions;
    for (const std::string& log : round.logs)
      if (const std::string action = action_in(log, victim); !action.empty())
        actions.insert(action);
    if (actions.empty()) ++before;
    EXPECT_LE(actions.size(), 1U) << round.describe();
    // One stage per rank: an action of a stage is one of the victim's.
    for (const std::string& action : actions)
      EXPECT_TRUE(!has(action, "of stage") || has(action, "of stage " + victim + ",")) << action;
    if (HasFailure()) return;
  }
  std::cout << rounds(2) << " stops, " << late << " of them after the end, " << before
            << " before all had met; slowest end " << seconds(slowest) << " s\n";
}

TEST(Campaign, ARankThatIsTenTimesSlowerIsNoFalseAlarm) {
  // Stopped for nine tenths of the time.
  const std::string job = " -- train --json --batch-size 64 --model mlp:64-8-8-10 --steps " +
                          std::to_string(100 * rounds(1));
  const Outcome alone = test::run("launch -n 3" + job);
  Command command("launch -n 3 --silence 1 --hang 1" + job);
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

}  // namespace
}  // namespace millrace
