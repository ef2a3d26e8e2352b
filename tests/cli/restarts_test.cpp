// When a failed job starts again, from numbers alone; and what is said of it.
#include "cli/ranks/restarts.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "cli/exit_codes.hpp"

namespace millrace::cli {
namespace {

using std::chrono::milliseconds;

JobFailure killed(std::int64_t step, std::int64_t progress = 0) {
  return {.code = kLostPeer, .what = "rank 1 died", .step = step, .progress = progress};
}

/// The decision after all of these.
RestartDecision after(const std::vector<JobFailure>& failures, int restarts) {
  RestartDecision decision;
  for (const JobFailure& failure : failures)
    decision = decide_restart(decision.history, failure, restarts);
  return decision;
}

TEST(Restarts, WithoutProgress_EndWhenNoneIsLeft) {
  EXPECT_TRUE(after({killed(1), killed(2)}, 2).restarts);
  const RestartDecision last = after({killed(1), killed(2), killed(3)}, 2);
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.why_not, "2 restarts without progress");
  EXPECT_EQ(after({killed(1), killed(2)}, 1).why_not, "1 restart without progress");
}

TEST(Restarts, Progress_AllowsAllAgain) {
  std::vector<JobFailure> failures;
  for (int i = 1; i <= 50; ++i) failures.push_back(killed(10 * i + 5, 10 * i));
  EXPECT_TRUE(after(failures, 1).restarts);
  failures.push_back(killed(509, 500));
  EXPECT_FALSE(after(failures, 1).restarts);
}

TEST(Restarts, LessThanTheMostSoFar_IsNoProgress) {
  EXPECT_FALSE(after({killed(45, 40), killed(35, 30), killed(42, 40)}, 2).restarts);
}

TEST(Restarts, UnknownProgress_NeverRefills) {
  const JobFailure unknown{.code = 3, .what = "rank 0 ended with exit code 3"};
  EXPECT_TRUE(after(std::vector(4, unknown), 4).restarts);
  EXPECT_FALSE(after(std::vector(5, unknown), 4).restarts);
}

TEST(Restarts, SameFailureAndStepThreeTimes_Ends) {
  EXPECT_TRUE(after({killed(7), killed(7)}, 100).restarts);
  const RestartDecision last = after({killed(7), killed(7), killed(7)}, 100);
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.why_not, "the same failure in the same step, 3 times");
  EXPECT_FALSE(after(std::vector(3, killed(-1)), 100).restarts);  // at its start
}

TEST(Restarts, OtherStepOrFailure_IsNotTheSame) {
  JobFailure other = killed(7);
  other.what = "rank 0 died";
  EXPECT_TRUE(after({killed(7), killed(7), other, killed(7), killed(7)}, 100).restarts);
  EXPECT_TRUE(after({killed(7), killed(7), killed(8), killed(7), killed(7)}, 100).restarts);
}

TEST(Restarts, FailureAfterTheResult_Ends) {
  JobFailure failure = killed(7, 7);
  failure.has_result = true;
  const RestartDecision decision = after({failure}, 100);
  EXPECT_FALSE(decision.restarts);
  EXPECT_EQ(decision.why_not, "the training had ended, with its result");
}

TEST(Restarts, Delay_DoublesWithoutProgressUpToAMinute) {
  std::vector<JobFailure> failures;
  std::vector<milliseconds> delays;
  for (int i = 0; i < 40; ++i) {
    failures.push_back(killed(i % 5));
    delays.push_back(after(failures, 100).delay);
  }
  for (int i = 0; i < 9; ++i)
    EXPECT_EQ(delays[static_cast<std::size_t>(i)], milliseconds(100 * (1 << i)));
  EXPECT_EQ(delays.back(), milliseconds(60'000));
  failures.push_back(killed(30, 20));
  EXPECT_EQ(after(failures, 100).delay, milliseconds(100));
}

TEST(Restarts, AreForWhatAnAttemptMayCure) {
  for (const int code : {kLostPeer, kHang}) {
    EXPECT_TRUE(may_restart(code, true));
    EXPECT_TRUE(may_restart(code, false));
  }
  for (const int code : {kDone, kUsage, kCorruptData, kMismatch, kInterrupted, kTerminated}) {
    EXPECT_FALSE(may_restart(code, true)) << code;
    EXPECT_FALSE(may_restart(code, false)) << code;
  }
  EXPECT_FALSE(may_restart(kFailed, true));  // diverged, or the disk is full
  EXPECT_TRUE(may_restart(kFailed, false));  // any exception of Python
}

TEST(Restarts, Line_NamesFailureStepAndRepeatedSteps) {
  const milliseconds delay(400);
  EXPECT_EQ(restart_line(killed(37, 30), 2, delay, Continues::FromCheckpoints),
            "rank 1 died in step 37; restart 2 in 0.4 s from step 30, 7 steps are done again");
  EXPECT_EQ(
      restart_line(killed(1), 1, delay, Continues::FromCheckpoints),
      "rank 1 died in step 1; restart 1 in 0.4 s from the beginning (no checkpoint yet), 1 step "
      "is done again");
  EXPECT_EQ(restart_line(killed(-1, 30), 3, delay, Continues::FromCheckpoints),
            "rank 1 died before its first step; restart 3 in 0.4 s from step 30");
  EXPECT_EQ(restart_line(killed(5), 1, delay, Continues::FromTheBeginning),
            "rank 1 died in step 5; restart 1 in 0.4 s from the beginning (no --save), 5 steps are "
            "done again");
  EXPECT_EQ(restart_line({.code = 1, .what = "rank 0 failed"}, 1, delay, Continues::AsItsProgram),
            "rank 0 failed; restart 1 in 0.4 s; the program continues from its own checkpoint, if "
            "it has one");
}

}  // namespace
}  // namespace millrace::cli
