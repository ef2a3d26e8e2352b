// kill -9 at seeded moments of a run that saves after every step: what was saved goes on to the
// weights of the run that nobody killed. When to kill is counted in lines of output, so a slow
// machine only takes longer.
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/random.hpp"
#include "tests/cli/command.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;
using testing_files::Folder;

const std::string kKilledJob =
    "train --model mlp:64-16-16-10,dropout=0.1 -p 2 -m 2 --accumulate 2 --batch-size 480 --steps "
    "60 "
    "--seed 3 --executor sequential ";

/// Whether the run was killed, which is when it had said so many lines; else it ended by itself.
bool killed_after(std::uint32_t lines, const std::string& arguments) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return false;
  const std::string line = "exec " MILLRACE_BINARY_DIR "/millrace " + arguments + " 2>&1";
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  for (char letter = 0; lines > 0 && ::read(ends[0], &letter, 1) == 1;)
    if (letter == '\n') --lines;
  if (lines == 0) ::kill(child, SIGKILL);
  int status = 0;
  // Whoever is not killed must not wait for a reader.
  for (char letter = 0; lines > 0 && ::read(ends[0], &letter, 1) == 1;) continue;
  ::waitpid(child, &status, 0);
  ::close(ends[0]);
  return WIFSIGNALED(status);
}

TEST(KilledTrain, Restarted_EndsWithTheSameWeights) {
  const Ran whole = command(kKilledJob);
  ASSERT_EQ(whole.code, 0) << whole.text;
  const std::string weights = whole.text.substr(whole.text.find("weights "), 40);
  const Folder folder("cli_killed");
  const std::string place = folder.path() + "/saved";
  const std::string job = kKilledJob + "--save " + place + " --save-every 1 --resume auto";
  int kills = 0;
  // Each round has more lines to go through than the last one resumed behind.
  for (std::uint32_t round = 0; round < 6; ++round)
    kills += killed_after(1 + random_below({.seed = 4}, round, 6), job) ? 1 : 0;
  EXPECT_GE(kills, 1);  // on a busy machine a run may be at its end before the signal comes
  const Ran last = command(job);
  EXPECT_EQ(last.code, 0) << last.text;
  EXPECT_THAT(last.text, HasSubstr("resumed " + place));
  EXPECT_THAT(last.text, HasSubstr(weights));
  for (const auto& entry : std::filesystem::directory_iterator(place))
    EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("step-"));
}

/// As a kill between the last checkpoint and the end of its save would leave it.
TEST(KilledTrain, ResumedAfterItsEnd_LeavesNothingUnfinished) {
  const Folder folder("cli_killed");
  const std::string place = folder.path() + "/saved";
  const std::string job = "train -p 2 --steps 2 --resume auto --save " + place;
  ASSERT_EQ(command(job).code, 0);
  for (const char* name : {".tmp-step-0000000012", ".trash-step-0000000001"}) {
    std::filesystem::create_directory(place + "/" + name);
    std::ofstream(place + "/" + name + "/manifest.json") << "{}";
  }
  const Ran last = command(job);
  EXPECT_EQ(last.code, 0) << last.text;
  for (const auto& entry : std::filesystem::directory_iterator(place))
    EXPECT_EQ(entry.path().filename(), "step-0000000002");
}

}  // namespace
}  // namespace millrace::test
