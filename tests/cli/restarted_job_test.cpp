// Jobs that launch --restarts starts again: with kills at random moments they end with the weights
// of the run that nothing disturbed. MILLRACE_ROUNDS (tests/soak.sh sets it) has the kills of
// each job.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/launched.hpp"
#include "millrace/core/random.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace {
namespace {

using test::Command;
using test::Outcome;
using test::run;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing_files::Folder;

namespace fs = std::filesystem;

std::uint32_t kills_of_a_job() {
  const char* said = std::getenv("MILLRACE_ROUNDS");  // NOLINT(concurrency-mt-unsafe)
  return said == nullptr ? 3 : static_cast<std::uint32_t>(std::stoul(said));
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string weights_of(const Outcome& outcome) {
  const auto at = outcome.output.find("\"weights_hash\"");
  return at == std::string::npos ? outcome.errors : outcome.output.substr(at, 60);
}

/// What --save has: the step of its newest checkpoint, 0 without one, and whether one is being
/// written.
struct Saved {
  explicit Saved(const std::string& folder) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename();
      writes = writes || name.starts_with(".tmp-");
      if (name.starts_with("step-")) newest = std::max(newest, std::stol(name.substr(5)));
    }
  }

  long newest = 0;
  bool writes = false;
};

/// A job that is disturbed; `seed` draws moments and victims.
struct Job {
  const char* flags;
  std::size_t processes;
  const char* work;
  std::uint64_t seed;
};

enum class Moment { Start, Save, Step };

/// One start in five, one save in five. Never twice at the start: that makes no progress.
Moment moment_of(std::uint64_t seed, std::uint32_t kill) {
  const auto draw = [&](std::uint32_t i) {
    return random_below({.seed = seed, .purpose = Purpose::Test}, i, 5);
  };
  if (draw(kill) == 0 && (kill == 0 || moment_of(seed, kill - 1) != Moment::Start))
    return Moment::Start;
  return draw(kill) == 1 ? Moment::Save : Moment::Step;
}

/// Kills one process of the job after the other, each in an attempt of its own.
class Killer {
 public:
  Killer(const Command& command, const Job& job, std::string folder)
      : command_(command), job_(job), folder_(std::move(folder)) {}

  /// False if the job had ended before.
  bool kill(std::uint32_t number) {
    const std::vector<pid_t> workers = next_workers();
    if (workers.empty()) return false;
    await(moment_of(job_.seed, number), number);
    const auto victim = random_below({.seed = job_.seed + 100, .purpose = Purpose::Test},
                                     number,
                                     static_cast<std::uint32_t>(job_.processes));
    ::kill(workers[victim], SIGKILL);
    return true;
  }

  [[nodiscard]] std::vector<pid_t> all() const { return {seen_.begin(), seen_.end()}; }

 private:
  /// Of the next attempt; empty if there is none.
  std::vector<pid_t> next_workers() {
    while (!command_.has_ended()) {
      std::vector<pid_t> workers = command_.workers(job_.processes);
      const bool is_new =
          workers.size() == job_.processes &&
          std::ranges::none_of(workers, [&](pid_t id) { return seen_.contains(id); });
      if (!is_new) continue;
      seen_.insert(workers.begin(), workers.end());
      begun_ = Saved(folder_).newest;
      return workers;
    }
    return {};
  }

  /// After at least one more checkpoint than the attempt began with, but at the start.
  void await(Moment moment, std::uint32_t number) {
    if (moment == Moment::Start) return;
    while (Saved(folder_).newest <= begun_ && !command_.has_ended()) std::this_thread::yield();
    if (moment == Moment::Save) {
      while (!Saved(folder_).writes && !command_.has_ended()) std::this_thread::yield();
      return;
    }
    constexpr std::uint32_t kMicroseconds = 20'000;
    const auto time =
        random_below({.seed = job_.seed + 200, .purpose = Purpose::Test}, number, kMicroseconds);
    std::this_thread::sleep_for(std::chrono::microseconds(time));
  }

  const Command& command_;
  const Job& job_;
  std::string folder_;
  std::set<pid_t> seen_;
  long begun_ = 0;
};

/// Names in /dev/shm.
std::set<std::string> shared_files() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error))
    if (entry.path().filename().string().find("millrace") != std::string::npos)
      names.insert(entry.path().filename());
  return names;
}

void kill_at_random(const Job& job) {
  const std::uint32_t kills = kills_of_a_job();
  const Folder folder("restarted");
  const std::string saved = folder.path() + "/saved", log = folder.path() + "/log.jsonl";
  const std::string work = std::string("train --json --model mlp:64-24-24-10,dropout=0.1 -m 4 ") +
                           job.work + " --batch-size 64 --seed 3 --steps " +
                           std::to_string(60 + 25 * kills);
  const std::string flags = "launch -n " + std::to_string(job.processes) + " " + job.flags;
  SCOPED_TRACE(flags + " -- " + work);
  const auto before = shared_files();
  const Outcome whole = run(work);
  ASSERT_EQ(whole.code, 0) << whole.errors;

  Command command(flags + " --restarts 2 -- " + work + " --save " + saved +
                  " --save-every 4 --log " + log);
  Killer killer(command, job, saved);
  std::uint32_t killed = 0;
  std::map<Moment, int> moments;
  for (; killed < kills && killer.kill(killed); ++killed) ++moments[moment_of(job.seed, killed)];
  command.await_end();
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(weights_of(outcome), weights_of(whole)) << outcome.errors;
  EXPECT_EQ(killed, kills) << "the job was too short";
  EXPECT_EQ(count(outcome.errors, "; restart "), killed) << outcome.errors;
  const auto last = outcome.errors.rfind(" from step ");
  ASSERT_NE(last, std::string::npos) << outcome.errors;
  std::string step_text = std::to_string(std::stol(outcome.errors.substr(last + 11)));
  step_text.insert(0, 10 - step_text.size(), '0');
  EXPECT_THAT(outcome.errors, HasSubstr("millrace: resumed " + saved + "/step-" + step_text));
  for (const auto& entry : fs::directory_iterator(saved))
    EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("step-"));
  EXPECT_TRUE(test::all_gone(killer.all()));
  EXPECT_EQ(shared_files(), before);
  std::istringstream lines(test::text_of(log));
  std::uint32_t step = 0, restarts = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    EXPECT_EQ(record["step"], ++step);
    EXPECT_EQ(record["downtime"].get<double>() > 0, record["restarts"].get<int>() > 0) << line;
    restarts += record["restarts"].get<std::uint32_t>();
  }
  EXPECT_EQ(restarts, killed);
  std::cout << killed << " kills, " << moments[Moment::Start] << " at the start, "
            << moments[Moment::Save] << " while saving\n";
}

TEST(RestartedJob, RandomKills_LeaveTheWeightsOverEveryTransport) {
  for (const Job& job : {Job{"--endpoint shm", 2, "-p 2", 1},
                         Job{"--endpoint ipc", 2, "-p 2 --schedule zb-h1", 2},
                         Job{"--endpoint tcp", 2, "-p 2", 3},
                         Job{"--endpoint shm", 4, "-p 2 -d 2 --shard-optimizer", 4}})
    kill_at_random(job);
}

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
  EXPECT_EQ(weights_of(outcome), weights_of(run(train(40))));
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
  EXPECT_EQ(weights_of(outcome), weights_of(run(train(300))));
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
  EXPECT_EQ(weights_of(outcome), weights_of(run(work)));
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

TEST(RestartedJob, DivergedTraining_IsNotStartedAgain) {
  const Outcome outcome =
      run("launch -n 2 --restarts 100 -- train --model mlp:64-24-20-16-10 -m 4 --batch-size 64 "
          "--steps 60 --optimizer sgd --lr 1e30 --lr-schedule constant --warmup 0 --max-skipped 5");

  EXPECT_EQ(outcome.code, 1) << outcome.errors;
  EXPECT_THAT(outcome.errors, AllOf(HasSubstr("training diverged"), Not(HasSubstr("restart"))));
}

}  // namespace
}  // namespace millrace
