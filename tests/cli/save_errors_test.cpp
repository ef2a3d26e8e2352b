// Saves that cannot be: a full disk, a folder that another run saves in, a training that trained
// nothing. Each ends with a sentence and a code.
#include <cstdio>
#include <filesystem>
#include <string>
#include <sys/wait.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/command.hpp"
#include "tests/cli/launched.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_files::Folder;

const std::string kSavingJob = "train --model mlp:64-16-16-10 -m 4 --steps 2 --seed 3 ";

/// Waits until the run has saved once.
void await_first_checkpoint(const std::string& place) {
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (command("checkpoint ls " + place).code != 0 && Clock::now() < deadline)
    std::this_thread::yield();
}

/// What the shell says where no file may grow.
Ran within_no_room(const std::string& arguments) {
  const std::string line = "ulimit -f 0; MILLRACE_PROGRESS=never " MILLRACE_BINARY_DIR
                           "/millrace " +
                           arguments + " 2>&1";
  std::FILE* pipe = ::popen(line.c_str(), "r");
  Ran ran;
  for (int byte = std::fgetc(pipe); byte != EOF; byte = std::fgetc(pipe))
    ran.text += static_cast<char>(byte);
  ran.code = WEXITSTATUS(::pclose(pipe));
  return ran;
}

/// "weights ..." of the run that saves nothing.
std::string weights_of_job() {
  const Ran ran = command(kSavingJob + "-p 2");
  const std::size_t at = ran.text.find("\nweights ");
  EXPECT_NE(at, std::string::npos) << ran.text;
  return ran.text.substr(at, 41);
}

TEST(SaveErrors, FullDisk_EndsBeforeTheFirstStep) {
  const Folder folder("cli_full");
  const std::string place = folder.path() + "/full";
  const Ran stopped = within_no_room(kSavingJob + "-p 2 --save " + place);
  EXPECT_EQ(stopped.code, 1);
  EXPECT_THAT(stopped.text,
              AllOf(HasSubstr("millrace: no checkpoint can be saved: " + place),
                    HasSubstr(": File too large"),
                    Not(HasSubstr("epoch 1/"))));
  const Ran continued = within_no_room(kSavingJob + "-p 2 --save-errors continue --save " + place);
  EXPECT_EQ(continued.code, 1);
  EXPECT_THAT(continued.text,
              AllOf(HasSubstr("the checkpoint of step 0 failed: " + place),
                    HasSubstr(weights_of_job()),
                    HasSubstr("2 checkpoints were not saved, the last because " + place)));
  const Ran keys = within_no_room("keys -n 1 --out " + folder.path() + "/keys");
  EXPECT_EQ(keys.code, 1);
  EXPECT_THAT(keys.text, HasSubstr("the keys cannot be written to "));
}

TEST(SaveErrors, ReadOnlyFolder_EndsAllRanks) {
  const Folder folder("cli_no_folder");
  const std::string flag = " --save " + folder.write("file", "") + "/saved";
  const Ran ranks = command("launch -n 2 -- " + kSavingJob + flag);
  EXPECT_EQ(ranks.code, 1);
  EXPECT_THAT(ranks.text,
              AllOf(HasSubstr("no checkpoint can be saved"),
                    HasSubstr("Not a directory"),
                    Not(HasSubstr("epoch 1/"))));
  const Ran all = command("launch -n 2 -- " + kSavingJob + "--save-errors continue" + flag);
  EXPECT_EQ(all.code, 1);
  EXPECT_THAT(all.text, HasSubstr(weights_of_job()));
}

TEST(SaveErrors, EmptyValuesAreRejected) {
  for (const char* option : {"--save", "--resume", "--weights", "--log", "--trace", "--config"}) {
    const Ran ran = command("train --steps 1 " + std::string(option) + " ''");
    EXPECT_EQ(ran.code, 2) << option;
    EXPECT_THAT(ran.text, HasSubstr(std::string(option) + " \"\": must not be empty"));
  }
  EXPECT_THAT(command(kSavingJob + "--save x --save-errors skip").text,
              HasSubstr("--save-errors skip: must be stop or continue"));
}

TEST(SaveErrors, WeightsThatCannotBeginATraining_AreNamed) {
  const Folder folder("cli_lfs");
  const std::string file = folder.write("lfs", "version https://git-lfs.github.com/spec/v1\n");
  const Ran pointer = command("train --steps 1 --weights " + file);
  EXPECT_EQ(pointer.code, 65);
  EXPECT_THAT(pointer.text, HasSubstr(file + ": is a git-lfs pointer"));
  EXPECT_EQ(command("train --steps 1 --narrow-weights").code, 2);
}

TEST(NoUpdate, OfAnyStep_EndsWithOne) {
  const Ran ran = command(
      "train --model mlp:64-16-10 -p 1 --steps 3 --precision f16 --loss-scale static:1e30 "
      "--max-skipped 9");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.text, HasSubstr("nothing was trained: every step was skipped (3)"));
}

/// A run that saves until it is stopped, and has saved.
Command saving_run(const std::string& place) {
  return Command(
      "train --model mlp:64-16-16-10 -p 2 -m 4 --steps 1000000 --lr-schedule constant --warmup 0 "
      "--save " +
      place + " --save-every 1");
}

TEST(SaveFolder, OfALivingRun_IsNotShared) {
  const Folder folder("cli_locked");
  const std::string place = folder.path() + "/saved";
  Command run = saving_run(place);
  await_first_checkpoint(place);
  const Ran second = command("train --steps 1 --save " + place);
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.text,
              testing::ContainsRegex(place + ": another job .job [0-9a-f]+, host .*, process " +
                                     "[0-9]+. saves there; wait for its end, or save to another"));
  Command resumed("train --steps 1 --resume auto --save " + place);
  run.signal(SIGTERM);
  const Outcome first = run.end();
  EXPECT_EQ(first.code, 143) << first.errors;
  const Outcome next = resumed.end();
  EXPECT_EQ(next.code, 0) << next.errors;
  const std::string stopped = first.errors.substr(first.errors.find("stopped after step ") + 19);
  EXPECT_THAT(next.output,
              HasSubstr("finished at step " + stopped.substr(0, stopped.find(',')) + ";"));
}

TEST(SaveFolder, OfAKilledRun_IsCleanedAndGoesOn) {
  const Folder folder("cli_killed_lock");
  const std::string place = folder.path() + "/saved";
  Command run = saving_run(place);
  await_first_checkpoint(place);
  run.kill();
  const Ran next = command("train --steps 1000000 --epochs 1 --save " + place);
  EXPECT_EQ(next.code, 2);
  const Ran resumed = command("checkpoint ls " + place);
  const std::string newest = resumed.text.substr(0, resumed.text.find(' '));
  const std::int64_t step = std::stoll(newest.substr(newest.rfind('-') + 1));
  const Ran more =
      command("train --resume auto --save " + place + " --steps " + std::to_string(step + 1));
  EXPECT_EQ(more.code, 0) << more.text;
  for (const auto& entry : std::filesystem::directory_iterator(place))
    EXPECT_EQ(entry.path().filename().string().front(), 's') << entry.path();
}

}  // namespace
}  // namespace millrace::test
