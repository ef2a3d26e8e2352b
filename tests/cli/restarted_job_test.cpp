// Jobs that launch --restarts starts again, and those that it does not. Kills at random moments are
// in random_kills_test.cpp.
#include <sys/stat.h>

#include <gmock/gmock.h>

#include "cli/launched.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace {
namespace {

using test::Command;
using test::count;
using test::Outcome;
using test::run;
using test::Saved;
using test::weights_text;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing_files::Folder;

/// Waits until the text has as many parts.
void await(const std::string& path, const std::string& part, std::size_t number) {
  const auto deadline = test::Clock::now() + std::chrono::seconds(60);
  while (count(test::text_of(path), part) < number && test::Clock::now() < deadline)
    std::this_thread::yield();
}

std::string train(int steps) {
  return "train --json --model mlp:64-16-10 -p 2 -m 4 --batch-size 64 --seed 3 --steps " +
         std::to_string(steps);
}

TEST(RestartedJob, StoppedRank_RestartsFromTheCheckpoint) {
  const Folder folder("restarted");
  const std::string saved = folder.path() + "/saved";
  Command command("launch -n 2 --restarts 1 --heartbeat-timeout 1 --grace 1 -- " + train(40) +
                  " --save " + saved + " --save-every 2 --metrics " + folder.path() +
                  "/run.prom --report " + folder.path() + "/run.html");
  const auto workers = command.workers(2);
  while (Saved(saved).newest == 0 && !command.has_ended()) std::this_thread::yield();
  ::kill(workers.at(1), SIGSTOP);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(weights_text(outcome), weights_text(run(train(40))));
  EXPECT_THAT(outcome.errors,
              AllOf(HasSubstr("rank 1 was stopped (signal 19) and did not go on in step "),
                    HasSubstr("; restart 1 in 0.1 s from step "),
                    HasSubstr("millrace: resumed " + saved)));
  EXPECT_THAT(test::text_of(folder.path() + "/run.prom"),
              HasSubstr("\nmillrace_restarts_total 1\n"));
  EXPECT_THAT(test::text_of(folder.path() + "/run.html"), HasSubstr(", 1 restart, "));
  EXPECT_TRUE(test::all_gone(workers));
}

TEST(RestartedJob, WithoutSave_StartsFromTheBeginning) {
  const Folder folder("restarted");
  const std::string log = folder.path() + "/log.jsonl";
  Command command("launch -n 2 --restarts 1 -- " + train(300) + " --log " + log);
  const auto workers = command.workers(2);
  await(log, "\n", 3);
  ::kill(workers.at(0), SIGKILL);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(weights_text(outcome), weights_text(run(train(300))));
  EXPECT_THAT(outcome.errors, HasSubstr("; restart 1 in 0.1 s from the beginning (no --save), "));
}

TEST(RestartedJob, OlderResumedCheckpoint_GivesWayToItsOwn) {
  const Folder folder("restarted");
  const std::string first = folder.path() + "/first", saved = folder.path() + "/saved";
  ASSERT_EQ(run(train(4) + " --lr-schedule constant --save " + first).code, 0);
  const std::string work = train(40) + " --lr-schedule constant --resume " + first;
  Command command("launch -n 2 --restarts 1 -- " + work + " --save " + saved + " --save-every 2");
  const auto workers = command.workers(2);
  while (Saved(saved).newest == 0 && !command.has_ended()) std::this_thread::yield();
  ::kill(workers.at(0), SIGKILL);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(weights_text(outcome), weights_text(run(work)));
  EXPECT_THAT(outcome.errors, HasSubstr("millrace: resumed " + saved));
}

TEST(RestartedJob, OtherRunsFolder_IsRejectedFirst) {
  const Folder folder("restarted");
  const std::string saved = folder.path() + "/saved";
  ASSERT_EQ(run(train(2) + " --save " + saved).code, 0);
  const Outcome outcome = run("launch -n 2 --restarts 1 -- " + train(40) + " --save " + saved);

  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.errors,
            "millrace: --save " + saved +
                ": has checkpoints of another run; resume it, or save to another folder\n");
}

TEST(RestartedJob, ProgramThatAlwaysFails_EndsWithItsCode) {
  const Outcome outcome =
      run("launch -n 1 --restarts 2 -- sh -c 'echo attempt $MILLRACE_RESTART; exit 3'");

  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.output, "attempt 0\nattempt 1\nattempt 2\n");
  EXPECT_EQ(outcome.errors,
            "millrace launch: rank 0 ended with exit code 3; restart 1 in 0.1 s; the program "
            "continues from its own checkpoint, if it has one\n"
            "millrace launch: rank 0 ended with exit code 3; restart 2 in 0.2 s; the program "
            "continues from its own checkpoint, if it has one\n"
            "millrace launch: not started again: 2 restarts without progress\n"
            "millrace launch: rank 0 ended with exit code 3\n");
}

TEST(RestartedJob, LaterCode_IsThatOfTheLaunch) {
  const Outcome outcome =
      run("launch -n 1 --restarts 5 -- sh -c 'test $MILLRACE_RESTART = 0 && kill -9 $$; exit 78'");

  EXPECT_EQ(outcome.code, 78);
  EXPECT_EQ(count(outcome.errors, "; restart "), 1U) << outcome.errors;
  EXPECT_THAT(outcome.errors, EndsWith("millrace launch: rank 0 ended with exit code 78\n"));
}

TEST(RestartedJob, SameFailureThreeTimes_EndsWithTheReport) {
  const Outcome outcome =
      run("launch -n 2 --restarts 100 -- " MILLRACE_BINARY_DIR "/tests/joiner 1 dies-in-step-3");

  EXPECT_EQ(outcome.code, 69);
  EXPECT_EQ(count(outcome.errors, "rank 1 was ended by signal 9 (Killed) in step 3; restart "), 2U)
      << outcome.errors;
  EXPECT_THAT(outcome.errors,
              AllOf(HasSubstr("not started again: the same failure in the same step, 3 times\n"),
                    EndsWith("millrace launch: rank 1 was ended by signal 9 (Killed)\n")));
}

TEST(RestartedJob, ProgramReadsItsAttempt) {
  for (const char* link : {"shm", "ipc", "tcp"}) {
    const std::string joiner = MILLRACE_BINARY_DIR "/tests/joiner ";
    const Outcome outcome = run(std::string("launch -n 2 --restarts 1 --endpoint ") + link +
                                " -- " + joiner + "1 dies-once");

    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_EQ(outcome.output, run("launch -n 2 -- " + joiner).output);
    EXPECT_THAT(outcome.errors,
                HasSubstr("rank 1 was ended by signal 9 (Killed) in step 3; restart 1 in 0.1 s"));
  }
}

TEST(RestartedJob, SignalDuringTheDelay_EndsWithoutARestart) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
    Command command("launch -n 1 --restarts 100 -- sh -c 'kill -9 $$'");
    await(command.errors_path(), "; restart 4 ", 1);
    command.signal(signal);
    const Outcome outcome = command.end();

    EXPECT_EQ(outcome.code, code);
    EXPECT_THAT(outcome.errors,
                EndsWith("; the program continues from its own checkpoint, if it "
                         "has one\n"));
  }
}

TEST(RestartedJob, SignalDuringTheRun_EndsWithoutARestart) {
  Command command("launch -n 2 --restarts 100 -- " + train(1000000));
  const auto workers = command.workers(2);
  command.await_training();
  command.signal(SIGTERM);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 143) << outcome.errors;
  EXPECT_THAT(outcome.errors, Not(HasSubstr("; restart ")));
  EXPECT_TRUE(test::all_gone(workers));
}

/// Rank 0 waits for a reader of its timeline, after the result.
TEST(RestartedJob, RankKilledAfterTheResult_PrintsNoSecond) {
  const Folder folder("restarted");
  const std::string pipe = folder.path() + "/trace";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Command command("launch -n 2 --restarts 3 -- " + train(4) + " --save " + folder.path() +
                  "/saved --trace " + pipe);
  const auto workers = command.workers(2);
  ASSERT_EQ(workers.size(), 2U);
  test::Watch({workers[1]}).ends();
  await(command.output_path(), "\n}\n", 1);
  ::kill(workers[0], SIGKILL);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 69);
  EXPECT_EQ(count(outcome.output, "weights_hash"), 1U);
  EXPECT_THAT(outcome.errors,
              EndsWith("millrace launch: not started again: the training had ended, with its "
                       "result\nmillrace launch: rank 0 was ended by signal 9 (Killed)\n"));
}

/// Rank 1 ends when it has said that it is done, while rank 0 works on the result or prints it.
TEST(RestartedJob, RankKilledAtTheEnd_PrintsOneResult) {
  const Folder folder("restarted");
  for (int round = 0; round < 8; ++round) {
    Command command("launch -n 2 --restarts 3 --log-dir LOGS -- " + train(4) + " --save " +
                    folder.path() + "/" + std::to_string(round));
    const auto workers = command.workers(2);
    ASSERT_EQ(workers.size(), 2U);
    await(command.logs() + "/rank-1.log", "done after", 1);
    ::kill(workers[1], SIGKILL);
    const Outcome outcome = command.end();

    EXPECT_EQ(count(outcome.output, "weights_hash"), 1U) << outcome.errors;
    EXPECT_THAT(outcome.errors, Not(HasSubstr("; restart "))) << round;
  }
}

TEST(RestartedJob, DivergedTraining_IsNotStartedAgain) {
  const Outcome outcome =
      run("launch -n 2 --restarts 100 -- train --model mlp:64-24-20-16-10 -m 4 --batch-size 64 "
          "--steps 60 --optimizer sgd --lr 1e30 --lr-schedule constant --warmup 0 --max-skipped 5");

  EXPECT_EQ(outcome.code, 1) << outcome.errors;
  EXPECT_THAT(outcome.errors, AllOf(HasSubstr("training diverged"), Not(HasSubstr("restart"))));
}

}  // namespace
}  // namespace millrace
