// What the command does with its standard streams: a failed write is a failure, whoever closed one
// gets the rest, and a reader that does not read keeps nobody from training.
#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <pty.h>
#include <sys/stat.h>
#include <termios.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"
#include "cli/launched.hpp"

namespace millrace {
namespace {

using nlohmann::json;
using test::Clock;
using test::text_of;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kSmall = "train --ranks 2 --steps 3 --batch-size 32 --micro-batches 4 ";
constexpr const char* kMany = "train --json --steps 200 --batch-size 16 --micro-batches 4";

/// Runs the shell's line, in which $M is the command, in a folder of its own.
class Streams : public test::CommandTest {
 protected:
  int shell(const std::string& line) const {
    const std::string all =
        "cd " + path("") + "; export TMPDIR=$PWD; M=" MILLRACE_BINARY_DIR "/millrace; " + line;
    const int status = std::system(all.c_str());  // NOLINT(concurrency-mt-unsafe)
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
};

/// A pipe without room for another byte.
class FullPipe {
 public:
  FullPipe() {
    EXPECT_EQ(::pipe(ends_.data()), 0);
    ::fcntl(ends_[1], F_SETPIPE_SZ, 4096);
    ::fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    while (::write(ends_[1], "x", 1) == 1) ++stuffing_;
    ::fcntl(ends_[1], F_SETFL, 0);
    ::fcntl(ends_[0], F_SETFD, FD_CLOEXEC);  // or the command itself would be a reader
  }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;
  ~FullPipe() {
    ::close(ends_[0]);
    close_writer();
  }

  [[nodiscard]] std::string writer() const { return std::to_string(ends_[1]); }

  void close_writer() {
    if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
  }

  /// What comes out behind the stuffing until every writer has closed it.
  [[nodiscard]] std::string drained() const {
    std::string text;
    std::array<char, 4096> bytes{};
    for (ssize_t got = 1; got > 0; text.append(bytes.data(), static_cast<std::size_t>(got)))
      got = std::max<ssize_t>(0, ::read(ends_[0], bytes.data(), bytes.size()));
    return text.substr(stuffing_);
  }

 private:
  std::array<int, 2> ends_{-1, -1};
  std::size_t stuffing_ = 0;
};

TEST_F(Streams, UnwritableOutput_FailsEverySubcommand) {
  for (const std::string subcommand : {"list",
                                       "list --json",
                                       "show 1f1b -p 2 -m 2",
                                       "show 1f1b -p 2 -m 2 --csv -",
                                       "verify 1f1b -p 2 -m 2",
                                       "simulate 1f1b -p 2 -m 2",
                                       "compare 1f1b,gpipe -p 2 -m 2",
                                       "search -p 2 -m 2",
                                       "keys -n 1 --out keys",
                                       "--help",
                                       "train --json --ranks 2 --steps 2",
                                       "launch -n 2 -- train --json --steps 2"}) {
    for (const auto& [where, why] : {std::pair(">/dev/full", "No space left on device"),
                                     std::pair(">&-", "Bad file descriptor")}) {
      EXPECT_EQ(shell("$M " + subcommand + " 2>err " + where), 1) << subcommand << where;
      EXPECT_THAT(
          read("err"),
          HasSubstr(std::string("millrace: standard output cannot be written: ") + why + "\n"))
          << subcommand << where;
      shell("rm -rf keys");
    }
  }
}

TEST_F(Streams, AClosedPipeLetsTrainingFinishAndItsPeersUnharmed) {
  // The reader has gone before the first byte comes.
  EXPECT_EQ(shell("mkfifo gone; { read closed <gone;"
                  " $M launch -n 2 --log-dir logs -- train --steps 20 2>err; echo $? >code; } |"
                  " { exec <&-; echo closed >gone; }"),
            0);

  EXPECT_EQ(read("code"), "1\n");
  EXPECT_THAT(read("err"),
              EndsWith("millrace: standard output cannot be written: Broken pipe\n"
                       "millrace launch: rank 0 ended with exit code 1\n"));
  EXPECT_THAT(read("logs/rank-1.log"), HasSubstr("done after 20 updates"));
}

TEST_F(Streams, ALaunchTrainsWhicheverStreamsAreClosed) {
  const std::string job = "$M launch -n 3 -- train --json --steps 2 ";
  for (const std::string closed : {"0<&-", "2>&-", "0<&- 2>&-"}) {
    EXPECT_EQ(shell(job + ">out " + closed), 0) << closed;
    EXPECT_EQ(json::parse(read("out"))["updates"], 2) << closed;
  }
  for (const std::string closed : {"1>&-", "0<&- 1>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"})
    EXPECT_EQ(shell(job + closed), 1) << closed;
}

TEST_F(Streams, BlockedProgressReader_DelaysNoResult) {
  const FullPipe pipe;
  for (const std::string subcommand : {"", "launch -n 2 -- "}) {
    ASSERT_EQ(shell("$M " + subcommand + kMany + " >out 2>&" + pipe.writer()), 0) << subcommand;
    EXPECT_EQ(json::parse(read("out"))["updates"], 200) << subcommand;
  }
}

TEST_F(Streams, AStoppedTerminalDelaysNoResult) {
  int master = -1, terminal = -1;
  ASSERT_EQ(::openpty(&master, &terminal, nullptr, nullptr, nullptr), 0);
  ASSERT_EQ(::tcflow(terminal, TCOOFF), 0);

  EXPECT_EQ(shell(std::string("$M ") + kMany + " >out 2>&" + std::to_string(terminal)), 0);
  EXPECT_EQ(json::parse(read("out"))["updates"], 200);
  ::close(master);
  ::close(terminal);
}

TEST_F(Streams, Terminal_GetsColoursAndTables) {
  int master = -1, terminal = -1;
  ASSERT_EQ(::openpty(&master, &terminal, nullptr, nullptr, nullptr), 0);
  ::fcntl(master, F_SETFL, O_NONBLOCK);
  const auto shown = [&](const std::string& line) {
    EXPECT_EQ(shell(line + " >&" + std::to_string(terminal)), 0);
    std::string text;
    std::array<char, 4096> bytes{};
    for (ssize_t read = 0; (read = ::read(master, bytes.data(), bytes.size())) > 0;)
      text.append(bytes.data(), static_cast<std::size_t>(read));
    return text;
  };

  EXPECT_THAT(shown("$M show 1f1b -p 2 -m 2"), HasSubstr("\x1b["));
  EXPECT_THAT(shown("NO_COLOR=1 $M show 1f1b -p 2 -m 2"), Not(HasSubstr("\x1b[")));
  const std::string table = shown("$M sweep 1f1b,chimera -m 3,4");
  EXPECT_THAT(table, HasSubstr("\nchimera: "));
  EXPECT_THAT(table, HasSubstr("\n1f1b                   4    4"));
  for (std::size_t from = 0, end = 0; end != std::string::npos; from = end + 1) {
    end = table.find('\n', from);
    EXPECT_LE(std::min(end, table.size()) - from, 101U) << table;  // with the carriage return
  }
  ::close(master);
  ::close(terminal);
}

TEST_F(Streams, ResultsWaitForTheirReader) {
  FullPipe pipe;
  ASSERT_EQ(shell("($M launch -n 2 --log-dir logs -- train --epochs 5 >&" + pipe.writer() +
                  " 2>err; echo $? >code; mv code done) &"),
            0);
  pipe.close_writer();
  // Nobody reads before the other rank has finished.
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (read("logs/rank-1.log").find("done after 60 updates") == std::string::npos &&
         Clock::now() < deadline)
    std::this_thread::yield();

  EXPECT_THAT(pipe.drained(), AllOf(HasSubstr("test accuracy "), HasSubstr("\n2 processes\n")));
  while (read("done").empty() && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(read("done"), "0\n");
  EXPECT_THAT(read("err"), Not(HasSubstr("rank 0")));
}

TEST_F(Streams, Results_ComeBeforeFiles) {
  for (const std::string subcommand : {"", "launch -n 2 -- "}) {
    EXPECT_EQ(shell("$M " + subcommand + kSmall +
                    "--trace /dev/full --svg a.svg --profile /dev/full"
                    " >out 2>err"),
              1);

    EXPECT_THAT(read("out"), HasSubstr("test accuracy ")) << subcommand;
    EXPECT_THAT(read("err"),
                HasSubstr("millrace: --trace /dev/full cannot be written: No space left on device; "
                          "--profile /dev/full cannot be written: No space left on device\n"))
        << subcommand;
    EXPECT_THAT(read("a.svg"), HasSubstr("</svg>")) << subcommand;
  }
  EXPECT_EQ(shell("$M simulate 1f1b -p 2 -m 2 --svg /dev/full --csv a.csv >out 2>err"), 1);
  EXPECT_THAT(read("out"), HasSubstr("makespan"));
  EXPECT_THAT(read("a.csv"), HasSubstr("0F0"));
}

TEST_F(Streams, FileSizeLimit_NamesFileLeavesNone) {
  for (const std::string subcommand : {"", "launch -n 2 -- "}) {
    shell("ulimit -f 8; $M " + subcommand + kSmall + "--trace t.json 2>err | cat >out");

    EXPECT_THAT(read("out"), HasSubstr("test accuracy "));
    EXPECT_THAT(read("err"), HasSubstr("millrace: --trace t.json cannot be written: "));
    EXPECT_THAT(read("err"), Not(HasSubstr("signal")));
    EXPECT_EQ(shell("ls *.part t.json 2>/dev/null"), 2) << "left behind";
  }
}

}  // namespace
}  // namespace millrace
