// What the system, the disk and other people's programs may do to the command: few threads, few
// descriptors, little memory, damaged files, strange folders. Each ends in a sentence and its code.
#include <csignal>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"
#include "cli/launched.hpp"

namespace millrace {
namespace {

using nlohmann::json;
using test::Clock;
using test::Command;
using test::command;
using test::Outcome;
using test::Ran;
using test::run;
using test::temporary;
using test::text_of;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kLong = "-- train --json --epochs 100000 --batch-size 64";

using Limits = test::CommandTest;

TEST_F(Limits, DamagedFiles_ExitWith65) {
  write("cut.json", R"({"format": "millrace plan", "ranks": )");
  for (const std::string subcommand : {"verify ", "show ", "simulate ", "train --plan "}) {
    const Ran damaged = command(subcommand + path("cut.json"));
    EXPECT_EQ(damaged.code, 65) << subcommand << damaged.text;
    EXPECT_THAT(damaged.text, HasSubstr("cut.json:")) << subcommand;
    EXPECT_EQ(command(subcommand + path("none.json")).code, 2) << subcommand;
  }
  write("ragged.csv", "1,2,0\n1,2,3,1\n");
  write("cut.csv.gz", std::string("\x1f\x8b\x08\x00", 4));
  write("train-images-idx3-ubyte", std::string("\0\0\x08\x03\0\0", 6));
  write("train-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\x01\x07", 9));
  for (const std::string& data :
       {"csv:" + path("ragged.csv"), "csv:" + path("cut.csv.gz"), "idx:" + path("")}) {
    for (const std::string subcommand : {"train --data ", "launch -n 2 -- train --data "}) {
      const Ran damaged = command(subcommand + data);
      EXPECT_EQ(damaged.code, 65) << subcommand << damaged.text;
      EXPECT_THAT(damaged.text, HasSubstr("--data " + data + ": ")) << subcommand;
    }
  }
  EXPECT_EQ(command("train --data csv:" + path("none.csv")).code, 2);
  EXPECT_EQ(command("train --data idx:" + path("none")).code, 2);
}

TEST_F(Limits, UnreadableConfiguration_IsRejected) {
  for (const std::string subcommand : {"train ", "launch -n 2 -- train "}) {
    const Ran folder = command(subcommand + "--steps 1 --config " + path(""));
    EXPECT_EQ(folder.code, 2) << subcommand;
    EXPECT_THAT(folder.text, HasSubstr("--config " + path("") + " cannot be read")) << subcommand;
  }
}

/// Every subcommand with each file that it reads, which FILE stands for.
const std::vector<std::string> kReaders = {"import FILE",
                                           "verify ./FILE",
                                           "split FILE -p 2",
                                           "simulate 1f1b --costs FILE",
                                           "compare ./FILE",
                                           "compare 1f1b FILE",
                                           "sweep ./FILE",
                                           "search --from ./FILE",
                                           "train --plan FILE",
                                           "train --config FILE",
                                           "train --data csv:FILE"};

TEST_F(Limits, OfADeviceNothingIsRead) {
  for (std::string line : kReaders) {
    const std::size_t at = line.find("./FILE");
    line.replace(std::min(at, line.find("FILE")), at < line.size() ? 6 : 4, "/dev/zero");
    const Ran ran = command(line);
    EXPECT_EQ(ran.code, 2) << line;
    EXPECT_THAT(ran.text, HasSubstr("is a device or socket; expected a file or a pipe")) << line;
  }
}

TEST_F(Limits, LargeFile_ReadsOnlyItsKindsLimit) {
  std::ofstream(path("large")).close();
  std::filesystem::resize_file(path("large"), (std::uintmax_t{256} << 20U) + 1);
  EXPECT_THAT(command("simulate 1f1b --costs " + path("large")).text,
              HasSubstr("is larger than 256 MiB, the most that a cost file may have"));
  EXPECT_THAT(command("train --config " + path("large")).text,
              HasSubstr("is larger than 1 MiB, the most that a configuration may have"));
}

TEST_F(Limits, APipeIsReadAsAFile) {
  const Ran ran =
      command("show 1f1b -p 2 -m 2 --csv | " MILLRACE_BINARY_DIR "/millrace verify /dev/stdin");
  EXPECT_EQ(ran.code, 0) << ran.text;
}

TEST_F(Limits, FoldersMayHaveSpacesInTheirNames) {
  std::filesystem::create_directory(path("a b"));
  for (const std::string link : {"ipc", "tcp"}) {
    const Outcome outcome = run("launch -n 3 --endpoint " + link + " -- train --steps 1",
                                "export TMPDIR='" + path("a b") + "'; ");
    EXPECT_EQ(outcome.code, 0) << link << outcome.errors;
  }
}

TEST_F(Limits, ARankAloneNeedsNoDirectory) {
  const Outcome outcome = run("worker --rank 0 --world 1 --endpoint ipc -- train --steps 1");
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
}

TEST_F(Limits, TooLittleMemoryIsASentence) {
  const Outcome outcome =
      run("train --ranks 1 --steps 1 --model mlp:64-1-16777216-16777216-10 --executor sequential");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("there is not enough memory"));
  EXPECT_THAT(outcome.errors, Not(HasSubstr("std::")));
}

TEST_F(Limits, StoppedBeforeRendezvous_IsNotCalledKilled) {
  Command stopped(std::string("launch -n 2 --heartbeat-timeout 0.5 --grace 0.2 ") + kLong);
  const auto workers = stopped.workers(2);
  ASSERT_EQ(workers.size(), 2U);
  ::kill(workers[1], SIGSTOP);
  const Outcome outcome = stopped.end();

  EXPECT_EQ(outcome.code, 75) << outcome.errors;
  EXPECT_THAT(outcome.errors, Not(HasSubstr("ended by signal")));
  EXPECT_THAT(outcome.errors, EndsWith("rank 1 was stopped (signal 19) and did not go on\n"));
}

TEST_F(Limits, FewDescriptors_NameASufficientNumber) {
  const std::string job = "launch -n 5 -- train --json --steps 2";
  const Outcome refused = run(job, "ulimit -n 48; ");
  EXPECT_EQ(refused.code, 1);
  const std::string said = refused.errors, words = "millrace: a job of 5 processes needs ";
  ASSERT_TRUE(said.starts_with(words)) << said;
  EXPECT_THAT(said, HasSubstr(" descriptors, but a process may open only 48 here (ulimit -n)\n"));
  const std::string needed = said.substr(words.size(), said.find(' ', words.size()) - words.size());

  const Outcome enough = run(job, "ulimit -n " + needed + "; ");
  EXPECT_EQ(enough.code, 0) << enough.errors;
}

TEST_F(Limits, NoMoreThreadsIsASentence) {
  const std::string program = path("millrace");  // where any user may start it
  std::filesystem::copy_file(MILLRACE_BINARY_DIR "/millrace", program);
  write("err", "");
  const int errors = ::open(path("err").c_str(), O_WRONLY | O_CLOEXEC);
  for (const rlim_t most : {rlim_t{1}, rlim_t{2}, rlim_t{3}}) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(errors, stream);
      // The superuser has no such limit.
      if (::geteuid() == 0 && ::setuid(54'321) != 0) ::_exit(126);
      const rlimit threads{most, most}, dumps{0, 0};
      ::setrlimit(RLIMIT_NPROC, &threads);
      ::setrlimit(RLIMIT_CORE, &dumps);
      ::execl(program.c_str(), "millrace", "train", "--steps", "20", nullptr);
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << most << ": signal " << WTERMSIG(status);
    // Three may be enough where there are few cores.
    EXPECT_TRUE(WEXITSTATUS(status) == 1 || (most > 1 && WEXITSTATUS(status) == 0)) << most;
  }
  ::close(errors);
  EXPECT_THAT(read("err"), AllOf(HasSubstr("\nmillrace: "), HasSubstr("thread")));
}

TEST_F(Limits, NoAddressesForAThread_AreNotALackOfThreads) {
  int named = 0;
  for (int kib = 50'000; kib <= 120'000; kib += 10'000) {
    const Outcome outcome = run("launch -n 2 -- train --steps 1",
                                "ulimit -c 0; ulimit -v " + std::to_string(kib) + "; ");
    EXPECT_THAT(outcome.errors, Not(HasSubstr("ulimit -u"))) << kib;
    named +=
        outcome.errors.find("not enough memory for another thread (ulimit -v)") != std::string::npos
            ? 1
            : 0;
  }
  EXPECT_GT(named, 0);
}

TEST_F(Limits, ProcessWithSecret_LeavesNoCoreDump) {
  ASSERT_EQ(run("keys -n 1 --out " + path("keys")).code, 0);
  for (const bool wanted : {false, true}) {
    Command worker("worker --rank 0 --world 1 --keys " + path("keys") +
                       (wanted ? " --core-dumps " : " ") + kLong,
                   "ulimit -c unlimited; cd " + path("") + "; ");
    worker.await_training();
    worker.signal(SIGABRT);
    siginfo_t info{};
    ::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
    EXPECT_EQ(info.si_code, wanted ? CLD_DUMPED : CLD_KILLED);
    const Outcome outcome = worker.end();
    EXPECT_EQ(outcome.errors.find("a core dump of this process holds its secret key") !=
                  std::string::npos,
              wanted);
  }
}

/// Ends those that clean up behind launchers that this process started.
void kill_cleanups() {
  const std::string self = std::to_string(::getpid());
  std::istringstream children(text_of("/proc/" + self + "/task/" + self + "/children"));
  for (pid_t child = 0; children >> child;) {
    if (text_of("/proc/" + std::to_string(child) + "/comm") != "millrace-tidy\n") continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

std::size_t key_files(const std::string& folder) {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    found += entry.path().filename().string().starts_with("keys-") ? 1U : 0U;
  return found;
}

std::size_t folders(const std::string& folder) {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    found += entry.is_directory() ? 1U : 0U;
  return found;
}

TEST_F(Limits, FoldersOfTheDeadGoNoneHoldsKeys) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const std::string here = "export TMPDIR=" + path("") + "; ";
  Command dead(std::string("launch -n 2 --endpoint tcp ") + kLong, here);
  dead.await_training();
  EXPECT_EQ(key_files(path("")), 0U);
  kill_cleanups();  // first, or it would do its work
  dead.kill();
  while (::waitpid(-1, nullptr, 0) > 0) continue;
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ASSERT_EQ(folders(path("")), 1U);

  Command living(std::string("launch -n 3 --endpoint tcp ") + kLong, here);
  living.await_training();
  EXPECT_EQ(folders(path("")), 1U);
  EXPECT_EQ(run("launch -n 2 -- train --steps 1", here).code, 0);
  EXPECT_EQ(folders(path("")), 1U);
  EXPECT_EQ(key_files(path("")), 0U);
  living.signal(SIGTERM);
  EXPECT_EQ(living.end().code, 143);
  EXPECT_EQ(folders(path("")), 0U);
}

}  // namespace
}  // namespace millrace
