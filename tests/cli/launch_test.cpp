// Processes: the same bits as one process, every end named and counted, nothing left behind.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "millrace/core/random.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

struct Outcome {
  int code = -1;
  std::string output;
  std::string errors;
};

std::string temporary() {
  return std::filesystem::temp_directory_path();
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A running millrace command with a temporary directory of its own, in which it must leave
/// nothing.
class Command {
 public:
  explicit Command(const std::string& arguments) : scratch_(temporary()) {
    std::filesystem::create_directory(scratch_.path() + "/tmp");
    const std::string line = "TMPDIR=" + scratch_.path() +
                             "/tmp exec " MILLRACE_BINARY_DIR "/millrace " + arguments + " >" +
                             scratch_.path() + "/out 2>" + scratch_.path() + "/err";
    process_ = ::fork();
    if (process_ == 0) {
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      ::_exit(127);
    }
  }

  ~Command() {
    if (process_ > 0) static_cast<void>(end());
  }

  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  void signal(int number) const { ::kill(process_, number); }

  /// Process ids of the workers, by rank, as soon as `count` of them are there.
  [[nodiscard]] std::vector<pid_t> workers(std::size_t count) const {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    const std::string number = std::to_string(process_);
    const std::string children = "/proc/" + number + "/task/" + number + "/children";
    std::vector<pid_t> found;
    while (found.size() < count && Clock::now() < deadline) {
      std::this_thread::yield();
      std::istringstream line(text_of(children));
      found.clear();
      for (pid_t child = 0; line >> child;) found.push_back(child);
    }
    return found;
  }

  /// Waits until rank 0 has told of an epoch, so that training runs for certain.
  void await_training() const {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (text_of(scratch_.path() + "/err").empty() && Clock::now() < deadline)
      std::this_thread::yield();
  }

  Outcome end() {
    int status = 0;
    ::waitpid(process_, &status, 0);
    process_ = -1;
    EXPECT_TRUE(std::filesystem::is_empty(scratch_.path() + "/tmp")) << "files were left behind";
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            text_of(scratch_.path() + "/out"),
            text_of(scratch_.path() + "/err")};
  }

 private:
  PrivateDirectory scratch_;
  pid_t process_ = -1;
};

Outcome run(const std::string& arguments) {
  return Command(arguments).end();
}

std::string hash_of(const Outcome& outcome) {
  if (outcome.code != 0) return "exit " + std::to_string(outcome.code) + ": " + outcome.errors;
  return nlohmann::json::parse(outcome.output).at("weights_hash");
}

constexpr const char* kJob =
    "train --json --steps 3 --batch-size 64 --micro-batches 12 --clip-norm 1";
constexpr const char* kLong = "-- train --json --epochs 100000 --batch-size 64";

bool all_gone(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes)
    if (::kill(process, 0) == 0) return false;
  return true;
}

TEST(Launch, GivesTheBitsOfOneProcessForEveryScheduleNumberOfRanksAndEndpoint) {
  const std::string one = hash_of(run(kJob));
  ASSERT_EQ(one.size(), 32U) << one;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"})
    for (const int ranks : {2, 3, 4})
      for (const char* link : {"ipc", "tcp"}) {
        const Outcome outcome = run("launch -n " + std::to_string(ranks) + " --endpoint " + link +
                                    " -- " + kJob + " --schedule " + schedule);
        EXPECT_EQ(hash_of(outcome), one) << schedule << " on " << ranks << " ranks over " << link;
      }
}

TEST(Launch, AKilledRankIsNamedByTheSurvivorsAndEverybodyEndsSoon) {
  for (std::uint32_t round = 0; round < 3; ++round) {
    const std::uint32_t victim = random_below({.seed = 3}, round, 3);
    Command command(std::string("launch -n 3 ") + kLong);
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

TEST(Launch, AStoppedRankIsNamedAsHangingWithWhatItDid) {
  Command command(std::string("launch -n 3 --silence 1.5 --grace 0.5 ") + kLong);
  const auto workers = command.workers(3);
  ASSERT_EQ(workers.size(), 3U);
  command.await_training();
  ::kill(workers[1], SIGSTOP);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 75) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("rank 1 is silent"));
  EXPECT_THAT(outcome.errors, HasSubstr("of step"));
  EXPECT_TRUE(all_gone(workers));
}

TEST(Launch, ATerminatedLaunchEndsItsWorkersWithCode143) {
  Command command(std::string("launch -n 2 ") + kLong);
  const auto workers = command.workers(2);
  ASSERT_EQ(workers.size(), 2U);
  command.signal(SIGTERM);
  const Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 143) << outcome.errors;
  EXPECT_TRUE(all_gone(workers));
}

TEST(Launch, WorkersThatDifferAreRefusedWithTheNameOfTheField) {
  // Two workers by hand, as an engine would start them, with different seeds.
  const PrivateDirectory place(temporary());
  const std::string common = " --world 2 --endpoint ipc --rendezvous ipc://" + place.path() +
                             "/rendezvous -- train --steps 1 --seed ";
  Command other("worker --rank 1" + common + "2");
  const Outcome mine = run("worker --rank 0" + common + "1");

  EXPECT_EQ(mine.code, 78);
  EXPECT_THAT(mine.errors, HasSubstr("seed differs: rank 0 has '1', rank 1 has '2'"));
  EXPECT_EQ(other.end().code, 78);
}

TEST(Doctor, FindsThatRanksCanTalk) {
  const Outcome outcome = run("doctor");

  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("ok    tcp on 127.0.0.1 with keys"));
}

TEST(Launch, RefusesWhatCannotBeMeantWithCodeTwo) {
  EXPECT_EQ(run("launch -n 2 -- train --stages 3").code, 2);
  EXPECT_EQ(run("launch -n 0 -- train").code, 2);
  EXPECT_EQ(run("launch -n 2 --endpoint smoke -- train").code, 2);
  EXPECT_EQ(run("launch -n 2 -- plan").code, 2);
}

}  // namespace
}  // namespace millrace
