// How a launch ends before its time: ranks that are killed or stopped, signals, and the launcher's
// own death. Every end is named and counted, and nothing is left behind.
#include <sys/prctl.h>
#include <sys/stat.h>

#include <gmock/gmock.h>

#include "cli/launched.hpp"
#include "millrace/core/random.hpp"
#include "millrace/transport/private_directory.hpp"

namespace millrace {
namespace {

using test::all_gone;
using test::Clock;
using test::Command;
using test::Outcome;
using test::run;
using test::temporary;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kLongRun = "-- train --json --epochs 100000 --batch-size 64";

TEST(Launch, KilledRank_IsNamedAndAllEndSoon) {
  for (std::uint32_t round = 0; round < 3; ++round) {
    const std::uint32_t victim = random_below({.seed = 3}, round, 3);
    Command command(std::string("launch -n 3 ") + kLongRun);
    const auto workers = command.workers(3);
    ASSERT_EQ(workers.size(), 3U);
    command.await_training();
    ::kill(workers[victim], SIGKILL);
    const auto start = Clock::now();
    const Outcome outcome = command.end();

    EXPECT_EQ(outcome.code, 69) << outcome.errors;
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(4));
    EXPECT_THAT(outcome.errors, HasSubstr("lost rank " + std::to_string(victim)));
    EXPECT_THAT(outcome.errors,
                HasSubstr("rank " + std::to_string(victim) + " was ended by signal 9"));
    EXPECT_TRUE(all_gone(workers));
  }
}

TEST(Launch, StoppedRank_IsNamedWithItsAction) {
  Command command(std::string("launch -n 3 --heartbeat-timeout 1.5 --grace 1 ") + kLongRun);
  const auto workers = command.workers(3);
  ASSERT_EQ(workers.size(), 3U);
  command.await_training();
  ::kill(workers[1], SIGSTOP);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 75) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("rank 1 is silent; everyone waits for rank 1: "));
  EXPECT_THAT(outcome.errors, HasSubstr("of step"));
  // Those that are left know only that it is silent; why is for the last line.
  EXPECT_THAT(outcome.errors,
              EndsWith("millrace launch: rank 1 was stopped (signal " + std::to_string(SIGSTOP) +
                       ") and did not go on\n"));
  EXPECT_TRUE(all_gone(workers));
}

TEST(Launch, OfAKilledRankNobodySpeaksThatHadFinished) {
  const PrivateDirectory place(temporary());
  const std::string pipe = place.path() + "/trace";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Command command("launch -n 3 -- " + std::string(test::kThreeSteps) + " --trace " + pipe);
  const auto workers = command.workers(3);
  ASSERT_EQ(workers.size(), 3U);
  // Rank 0 waits for a reader of its timeline; the others have nothing more to do.
  test::Watch({workers[1], workers[2]}).ends();
  ::kill(workers[0], SIGKILL);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 69);
  EXPECT_THAT(outcome.errors, Not(HasSubstr("ended with exit code")));
  EXPECT_THAT(outcome.errors, EndsWith("millrace launch: rank 0 was ended by signal 9 (Killed)\n"));
}

TEST(Launch, ATerminatedLaunchEndsItsWorkersWithCode143) {
  Command command(std::string("launch -n 2 ") + kLongRun);
  const auto workers = command.workers(2);
  ASSERT_EQ(workers.size(), 2U);
  command.signal(SIGTERM);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 143) << outcome.errors;
  EXPECT_TRUE(all_gone(workers));
}

TEST(Launch, AHangUpTerminatesItUnlessItWasIgnoredBefore) {
  for (const bool ignored : {false, true}) {
    Command command(std::string("launch -n 2 ") + kLongRun, ignored ? "trap '' HUP; " : "");
    const auto workers = command.workers(2);
    ASSERT_EQ(workers.size(), 2U);
    command.await_training();
    command.signal(SIGHUP);
    if (ignored) command.signal(SIGINT);  // of two that wait, the hang-up would be taken first
    const Outcome outcome = command.end();

    EXPECT_EQ(outcome.code, ignored ? 130 : 143) << outcome.errors;
    EXPECT_TRUE(all_gone(workers));
  }
}

TEST(Launch, IgnoredSignal_StillEndsWorkers) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
    Command command(std::string("launch -n 2 --grace 20 ") + kLongRun, "trap '' INT TERM; ");
    const auto workers = command.workers(2);
    ASSERT_EQ(workers.size(), 2U);
    command.await_training();
    const auto start = Clock::now();
    command.signal(signal);
    const Outcome outcome = command.end();

    EXPECT_EQ(outcome.code, code) << outcome.errors;
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
    EXPECT_TRUE(all_gone(workers));
  }
}

TEST(Launch, IgnoredSigchld_StillSeesWorkersEnd) {
  const Outcome outcome = run("launch -n 2 -- train --steps 1", "trap '' CHLD; ");

  EXPECT_EQ(outcome.code, 0) << outcome.errors;
}

TEST(Launch, AKilledLaunchLeavesNeitherWorkersNorFiles) {
  Command command(std::string("launch -n 3 ") + kLongRun);
  const auto workers = command.workers(3);
  ASSERT_EQ(workers.size(), 3U);
  command.await_training();
  command.signal(SIGKILL);

  const auto deadline = Clock::now() + std::chrono::seconds(5);
  while (!(all_gone(workers) && command.left_nothing()) && Clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_TRUE(all_gone(workers));
  EXPECT_EQ(command.end().code, 128 + SIGKILL);  // looks again for files
}

TEST(Launch, KilledDuringStart_LeavesNothing) {
  // Whoever loses its parent becomes a child of this process, which so sees all of them end.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  constexpr int kRounds = 60;
  for (int i = 0; i < kRounds; ++i) {
    Command command(std::string("launch -n 2 --endpoint tcp ") + kLongRun);
    const auto moment = Clock::now() + std::chrono::microseconds(300 * i);
    while (Clock::now() < moment) std::this_thread::yield();
    command.kill();
    int others = 0;
    while (::waitpid(-1, nullptr, 0) > 0) ++others;

    EXPECT_TRUE(command.left_nothing())
        << "killed after " << 300 * i << " us; " << others << " processes came after it";
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Launch, Interrupted_EndsWith130WithoutResult) {
  Command command(std::string("launch -n 2 ") + kLongRun);
  const auto workers = command.workers(2);
  ASSERT_EQ(workers.size(), 2U);
  command.await_training();
  command.signal(SIGINT);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 130) << outcome.errors;
  EXPECT_EQ(outcome.output, "");
  EXPECT_TRUE(all_gone(workers));
}

}  // namespace
}  // namespace millrace
