// A step that fails in one of several real processes: those that live save the state before it, and
// without one that was killed nobody does. And what launch says of it.
#include <array>
#include <csignal>
#include <filesystem>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "tests/cli/launched.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/saved_runs.hpp"

namespace millrace {
namespace {

using test::run;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_files::Folder;
using testing_training::first_digits;
using testing_training::kSavedModel;
using testing_training::names_in;
using testing_training::parts_on;
using testing_training::saved_options;

constexpr int kThreeRanks = 3;
constexpr int kStep = 4;  // fails: so many ran before it
const char* const kPlace = "step-0000000004";

/// How rank 1 fails in the middle of that step.
enum class Way : std::uint8_t { Throws, IsKilled };

void fail(Way way) {
  if (way == Way::IsKilled) ::raise(SIGKILL);
  throw Error("the floor gave way");
}

/// What a rank has to say at its end.
std::string words_of_rank(int rank,
                          const std::string& directory,
                          const std::string& place,
                          Way way) {
  std::string said;
  try {
    const TestOptions options = saved_options(place, kThreeRanks);
    ZeroMqOptions link;
    link.rank = Rank{rank};
    link.world = kThreeRanks;
    link.directory = directory;
    link.depths = channel_depths(
        generate(options.pipeline.schedule,
                 {.ranks = kThreeRanks, .micro_batches = options.pipeline.shape.micro_batches}));
    const auto endpoint = meet({.url = "ipc://" + directory + "/rendezvous"},
                               ZeroMqListener(link, std::make_shared<ZeroMqContext>()));
    ProcessGroup group(*endpoint);
    Trainer trainer(parts_on(options, *endpoint, group));
    trainer.on_save = [&](const SaveReport& report) {
      said += "folder " + report.folder + ", fault " + report.fault + "\n";
    };
    if (rank == 1)
      trainer.before_update = [&](std::span<Parameter* const>) {
        if (trainer.state().counters().mini_batches == kStep + 1) fail(way);
      };
    trainer.fit(first_digits(60));
  } catch (const std::exception& error) {
    said += error.what();
  }
  return said;
}

std::string read_to_end(int file) {
  std::string text;
  std::array<char, 1024> bytes{};
  for (ssize_t count = 0; (count = ::read(file, bytes.data(), bytes.size())) > 0;)
    text.append(bytes.data(), static_cast<std::size_t>(count));
  ::close(file);
  return text;
}

/// Each rank a process, until all have ended; what they said, by rank.
std::vector<std::string> train(const std::string& place, Way way) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  std::array<pid_t, kThreeRanks> processes{};
  std::array<int, kThreeRanks> outputs{};
  for (int rank = 0; rank < kThreeRanks; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw Error("no pipe");
    processes.at(i) = ::fork();
    if (processes.at(i) < 0) throw Error("no process");
    if (processes.at(i) == 0) {
      const std::string said = words_of_rank(rank, directory.path(), place, way);
      static_cast<void>(!::write(ends[1], said.data(), said.size()));
      ::_exit(0);
    }
    ::close(ends[1]);
    outputs.at(i) = ends[0];
  }
  std::vector<std::string> said;
  for (const int output : outputs) said.push_back(read_to_end(output));
  for (const pid_t process : processes) ::waitpid(process, nullptr, 0);
  return said;
}

std::string weights_of_the_whole(const std::string& place) {
  Trainer trainer = trainer_of(parse_model(kSavedModel), saved_options(place, 1));
  trainer.fit(first_digits(60));
  return trainer.weights_hash();
}

TEST(FailedStep, LiveProcesses_SaveFirst) {
  const Folder folder("cli_failed_step");
  const std::string place = folder.path() + "/saved";
  const auto said = train(place, Way::Throws);
  for (const std::string& words : said)
    EXPECT_THAT(words,
                AllOf(HasSubstr("folder " + place + "/" + kPlace + ", fault \n"),
                      HasSubstr("the floor gave way")));
  ASSERT_THAT(names_in(place), ElementsAre(kPlace));
  Trainer next = trainer_of(parse_model(kSavedModel), saved_options(place, 2));
  next.resume(place);
  next.fit(first_digits(60));
  EXPECT_EQ(next.weights_hash(), weights_of_the_whole(folder.path() + "/whole"));
}

TEST(FailedStep, IsNotSavedWithoutARankThatWasKilled) {
  const Folder folder("cli_killed_step");
  const std::string place = folder.path() + "/saved";
  const auto said = train(place, Way::IsKilled);
  EXPECT_THAT(
      said[0],
      AllOf(HasSubstr("folder , fault a rank is lost or hangs\n"), HasSubstr("lost rank 1")));
  EXPECT_THAT(said[1], IsEmpty());
  EXPECT_THAT(said[2], HasSubstr("folder , fault a rank is lost or hangs\n"));
  EXPECT_THAT(names_in(place), IsEmpty());
}

constexpr const char* kLong = "train --json --epochs 100000 --batch-size 64";

TEST(FailedStep, LostRank_KeepsOlderCheckpoints) {
  const Folder folder("cli_lost_step");
  const std::string place = folder.path() + "/saved";
  const std::string job = std::string("launch -n 3 -- ") + kLong + " --save " + place;
  test::Command command(job);
  const auto workers = command.workers(3);
  ASSERT_EQ(workers.size(), 3U);
  command.await_training();
  ::kill(workers[1], SIGKILL);
  const test::Outcome outcome = command.end();

  EXPECT_EQ(outcome.code, 69) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr(" was not saved: a rank is lost or hangs\n"));
  EXPECT_THAT(names_in(place), IsEmpty());
}

/// The first update throws the weights so far that no later gradient is finite.
TEST(FailedStep, DivergedLaunch_SavesBefore) {
  const Folder folder("cli_diverged_step");
  const std::string place = folder.path() + "/saved";
  const std::string job =
      "train --model mlp:64-24-20-16-10 --micro-batches 4 --batch-size 64 --steps 60 "
      "--optimizer sgd --lr 1e30 --lr-schedule constant --warmup 0 --max-skipped 5 --save " +
      place;
  for (const std::string& how : {"launch -n 3 -- " + job, job + "/alone --ranks 2"}) {
    const test::Outcome outcome = run(how);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.errors, HasSubstr("millrace: training diverged: "));
    EXPECT_THAT(outcome.errors, HasSubstr("the checkpoint of step 6 was saved: " + place));
  }
  EXPECT_THAT(names_in(place), ElementsAre("alone", "step-0000000006"));
}

}  // namespace
}  // namespace millrace
