// A job's temporary folder that is full: launch says which file could not be made and why, whatever
// was the first to find no room, and leaves nothing behind.
#include <cstdio>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;

class FullFolder : public CommandTest {
 protected:
  /// What the shell prints, with the exit code of its last command.
  static Ran shell(const std::string& script) {
    std::FILE* pipe = ::popen(("exec 2>&1; " + script).c_str(), "r");
    Ran ran;
    for (int byte = std::fgetc(pipe); byte != EOF; byte = std::fgetc(pipe))
      ran.text += static_cast<char>(byte);
    const int status = ::pclose(pipe);
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ran;
  }

  /// Two ranks that train in the folder, which is named last with what lies in it then.
  [[nodiscard]] std::string job(const std::string& link) const {
    return "export TMPDIR=" + path("full") +
           "; " MILLRACE_BINARY_DIR "/millrace launch -n 2 --endpoint " + link +
           " -- train --json --steps 1 --model mlp:64-8-8-10; code=$?; "
           "echo left: $(ls -A $TMPDIR); exit $code";
  }

  /// The job in a file system of its own, as small as `room` says.
  [[nodiscard]] Ran run_within(const std::string& room, const std::string& link) const {
    return shell("exec unshare -rm sh -c 'mount -t tmpfs -o " + room + " none " + path("full") +
                 " && { " + job(link) + "; }'");
  }

  void SetUp() override {
    CommandTest::SetUp();
    std::filesystem::create_directory(path("full"));
  }
};

TEST_F(FullFolder, FirstFileWithoutSpace_IsNamed) {
  const Ran probe = run_within("size=16m", "ipc");
  if (probe.text.find("unshare: ") != std::string::npos ||
      probe.text.find("mount: ") != std::string::npos) {
    // No file system of one's own here: a process whose files have no room at all is as near.
    const Ran ran = shell("ulimit -f 0; " + job("ipc"));
    EXPECT_EQ(ran.code, 1) << ran.text;
    EXPECT_THAT(ran.text, HasSubstr("millrace: cannot make " + path("full") + "/millrace-"));
    EXPECT_THAT(ran.text, AllOf(HasSubstr(": File too large\n"), EndsWith("left:\n")));
    return;
  }
  ASSERT_EQ(probe.code, 0) << probe.text;
  struct Case {
    std::string room, link, sentence;
  };
  const std::string page = "size=" + std::to_string(::sysconf(_SC_PAGESIZE));
  const std::string folder = path("full"), job_folder = folder + "/millrace-[A-Za-z0-9]+/";
  for (const Case& at :
       {Case{"nr_inodes=1", "ipc", "cannot make a private directory in " + folder},
        Case{"nr_inodes=2", "ipc", "cannot make " + job_folder + "owner"},
        Case{"nr_inodes=4", "ipc", "the log " + job_folder + "rank-1.log cannot be written"},
        Case{"nr_inodes=4", "tcp", "the keys cannot be written to " + job_folder + "keys-1"},
        Case{page, "tcp", "the keys cannot be written to " + job_folder + "keys-1"},
        Case{page, "shm", "the log " + job_folder + "rank-1.log cannot be written"},
        Case{"size=" + std::to_string(2 * ::sysconf(_SC_PAGESIZE)),
             "ipc",
             "cannot make " + job_folder + "r[01].0.progress"}}) {
    const Ran ran = run_within(at.room, at.link);
    EXPECT_EQ(ran.code, 1) << at.room << ": " << ran.text;
    EXPECT_THAT(ran.text, ContainsRegex("millrace: " + at.sentence + ": No space left on device\n"))
        << at.room;
    EXPECT_THAT(ran.text, EndsWith("left:\n")) << at.room;
  }
}

}  // namespace
}  // namespace millrace::test
