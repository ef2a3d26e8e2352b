// Any program under launch: told its place by its environment, supervised as our own subcommands
// are, and named when it never joins.
#include <filesystem>
#include <future>
#include <string>
#include <sys/stat.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "cli/launched.hpp"
#include "millrace/transport/private_directory.hpp"
#include "support/free_address.hpp"

namespace millrace {
namespace {

using test::all_gone;
using test::Command;
using test::free_address;
using test::Outcome;
using test::run;
using test::temporary;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kJoiner = MILLRACE_BINARY_DIR "/tests/joiner";

/// The program where nobody launches it, with these variables.
Outcome alone(const std::string& variables = {}) {
  const PrivateDirectory place(temporary());
  const std::string out = place.path() + "/out";
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the test has one thread
  const int status = std::system((variables + " " + kJoiner + " >" + out + " 2>&1").c_str());
  return {WEXITSTATUS(status), test::text_of(out), {}};
}

std::string launched(int ranks, const std::string& words, const std::string& flags = {}) {
  return "launch -n " + std::to_string(ranks) + " " + flags + " -- " + kJoiner + " " + words;
}

TEST(LaunchProgram, TrainsToTheWeightsOfOneProcess) {
  const Outcome one = alone();
  ASSERT_EQ(one.code, 0) << one.output;
  ASSERT_THAT(one.output, HasSubstr("weights "));
  const std::string weights = one.output.substr(one.output.find("weights "));

  for (const auto& [ranks, flags] : {std::pair{3, "--endpoint shm"},
                                     {3, "--endpoint ipc"},
                                     {2, "--endpoint tcp"},
                                     {2, "--endpoint tcp --insecure"},
                                     {1, ""},
                                     {1, "--endpoint tcp"}}) {
    const Outcome outcome = run(launched(ranks, "", flags));
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_EQ(outcome.output, weights) << ranks << " ranks, " << flags;
  }
}

TEST(LaunchProgram, LauncherVariables_JoinWithoutLaunch) {
  const PrivateDirectory place(temporary());
  ASSERT_EQ(run("keys -n 2 --out " + place.path() + "/keys").code, 0);
  const std::string job = "MILLRACE_WORLD=2 MILLRACE_RENDEZVOUS=" + free_address() +
                          " MILLRACE_JOIN_TIMEOUT=20 MILLRACE_KEYS=" + place.path() + "/keys ";
  auto other = std::async(std::launch::async, [job] { return alone(job + "MILLRACE_RANK=1"); });
  const Outcome first = alone(job + "MILLRACE_RANK=0");

  EXPECT_EQ(other.get().code, 0);
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(first.output, alone().output);
}

TEST(LaunchProgram, HalfSetIdentity_NamesTheVariable) {
  const std::string pair = "MILLRACE_RANK=0 MILLRACE_WORLD=2 MILLRACE_RENDEZVOUS=tcp://127.0.0.1:9";
  for (const auto& [variables, sentence] :
       {std::pair{std::string("MILLRACE_RANK=1"), "MILLRACE_WORLD is not set, but this is rank 1"},
        {pair,
         "MILLRACE_ENDPOINT tcp: give MILLRACE_KEYS FILE (millrace keys makes them), or "
         "MILLRACE_INSECURE\n"},
        {pair + " MILLRACE_ENDPOINT=smoke",
         "MILLRACE_ENDPOINT smoke: must be one of auto, shm, ipc, tcp, mixed, mpi\n"},
        {pair + " MILLRACE_KEYS_FD=33", "MILLRACE_KEYS by descriptor 33: cannot be read\n"}}) {
    const Outcome outcome = alone(variables);
    EXPECT_EQ(outcome.code, 2) << variables;
    EXPECT_THAT(outcome.output, StartsWith(std::string("joiner: ") + sentence));
  }
}

TEST(LaunchProgram, HandsOnEveryWordUntouched) {
  const Outcome outcome =
      run(launched(2,
                   "0 lists -n 7 --endpoint smoke --help '' 'a b' -- '[x,y]' %% --log-dir=/x train",
                   "--log-dir LOGS"));

  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(
      outcome.output,
      StartsWith("<0>\n<lists>\n<-n>\n<7>\n<--endpoint>\n<smoke>\n<--help>\n<>\n<a b>\n<-->\n"
                 "<[x,y]>\n<%%>\n<--log-dir=/x>\n<train>\nweights "));
}

TEST(LaunchProgram, IsFoundWhereTheShellWouldFindIt) {
  const Outcome outcome =
      run("launch -n 2 -- joiner", "PATH=/nowhere:" MILLRACE_BINARY_DIR "/tests; ");

  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, StartsWith("weights "));
}

TEST(LaunchProgram, MissingProgram_ExitsWith2) {
  const PrivateDirectory place(temporary());
  const std::string text = place.path() + "/text";
  std::ofstream(text) << "no program\n";
  for (const auto& [typed, sentence] : std::vector<std::pair<std::string, std::string>>{
           {"./nowhere", "'./nowhere': there is no such program\n"},
           {text, "'" + text + "': this may not be executed (chmod +x)\n"},
           {place.path(), "'" + place.path() + "': this is a folder, no program\n"},
           {"trian", "'trian': there is no such program; did you mean train?\n"},
           {"qqq",
            "'qqq': there is no such program; ranks train, doctor, or run a program that"}}) {
    const Outcome outcome = run("launch -n 2 -- " + typed + " --steps 1");
    EXPECT_EQ(outcome.code, 2) << typed;
    EXPECT_THAT(outcome.errors, StartsWith("millrace: " + sentence));
    EXPECT_EQ(std::count(outcome.errors.begin(), outcome.errors.end(), '\n'), 1) << outcome.errors;
  }
}

TEST(LaunchProgram, WhoseOptionsComeWithoutTheDashesIsRefused) {
  const Outcome outcome = run("launch -n 2 ./train.py --lr 0.1");

  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors,
              HasSubstr("--lr: not an option of launch; options of ./train.py come after --: "
                        "launch -n 2 -- ./train.py --lr ..."));
}

TEST(LaunchProgram, MissingRank_IsNamedByEachWaitingRank) {
  const std::string flags = "--join-timeout 3 --grace 3";  // for the other one, on a busy machine
  std::array commands = {Command(launched(2, "0 sleeps", flags)),
                         Command(launched(2, "1 sleeps", flags))};
  for (std::size_t absent = 0; absent < commands.size(); ++absent) {
    const auto processes = commands[absent].workers(2);
    const Outcome outcome = commands[absent].end();

    EXPECT_EQ(outcome.code, 75) << outcome.errors;
    EXPECT_THAT(outcome.errors,
                EndsWith("millrace launch: rank " + std::to_string(absent) +
                         " did not join within 3 s (join_launch)\n"));
    EXPECT_TRUE(all_gone(processes));
  }
}

/// Rank 0 gives up on rank 1, and the launch has seen its end before that one dies.
TEST(LaunchProgram, RankKilledAfterPeerGaveUp_IsNamed) {
  const std::string script =
      "cd $MILLRACE_LAUNCH; touch joined-$MILLRACE_RANK; case $MILLRACE_RANK in "
      "0) echo $$ >first; until [ -e joined-1 -a -e joined-2 ]; do sleep 0.02; done; exit 69;; "
      "1) until [ -s first ]; do sleep 0.02; done; "
      "while kill -0 $(cat first) 2>/dev/null; do sleep 0.02; done; kill -9 $$;; "
      "2) exec " +
      kJoiner + ";; esac";
  Command command("launch -n 3 --log-dir LOGS -- sh -c '" + script + "'");
  command.await_end();

  EXPECT_THAT(command.log(2),
              HasSubstr("lost a rank before all had met: rank 1 was ended by signal 9 (Killed)"));
  const Outcome outcome = command.end();
  EXPECT_EQ(outcome.code, 69);
  EXPECT_THAT(outcome.errors, EndsWith("rank 1 was ended by signal 9 (Killed)\n"));
}

TEST(LaunchProgram, NeverJoining_IsNamedOnEveryRank) {
  const Outcome outcome = run("launch -n 2 --join-timeout 0.5 --grace 1 -- sleep 100");

  EXPECT_EQ(outcome.code, 75);
  EXPECT_EQ(outcome.errors,
            "millrace launch: rank 0 did not join within 0.5 s (join_launch)\n"
            "millrace launch: rank 1 did not join within 0.5 s (join_launch)\n");
}

TEST(LaunchProgram, EndBeforeJoin_IsLostToWaitingRanks) {
  const Outcome outcome = run(launched(3, "1 ends"));

  EXPECT_EQ(outcome.code, 69);
  EXPECT_THAT(outcome.errors,
              HasSubstr("lost a rank before all had met: rank 1 ended with exit code 0 and had not "
                        "joined"));
  EXPECT_THAT(outcome.errors,
              EndsWith("millrace launch: rank 1 ended with exit code 0 and had not joined "
                       "(join_launch)\n"));
}

TEST(LaunchProgram, ProcessLeftBehind_DoesNotHoldTheLaunch) {
  const PrivateDirectory place(temporary());
  const std::string left = place.path() + "/left";
  // It takes rank 0's streams into a session of its own; one that writes is not waited for either.
  for (const char* deed : {"exec sleep 1000", "while echo again >&2; do :; done"}) {
    const Outcome outcome =
        run("launch -n 1 --grace 0.2 -- sh -c 'setsid sh -c \"echo \\$\\$ >" + left + "; " + deed +
            "\" & until [ -s " + left + " ]; do sleep 0.01; done; echo last >&2'");
    const pid_t process = std::stoi(test::text_of(left));
    const bool lives = std::string(deed).starts_with("exec");
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.errors, HasSubstr("last\n"));
    EXPECT_THAT(outcome.errors,
                HasSubstr("a process that rank 0 started holds its standard error"));
    if (lives) {
      EXPECT_FALSE(test::is_gone(process));  // it is not ours to end
      ::kill(process, SIGKILL);
    }
    std::filesystem::remove(left);
  }
}

TEST(LaunchProgram, OfWhichNoRankJoinsIsToldSo) {
  const Outcome outcome = run("launch -n 2 --log-dir LOGS -- echo hello");

  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output, "hello\n");
  EXPECT_EQ(outcome.errors,
            "millrace launch: no rank has joined, each worked alone (join_launch)\n");
}

/// What one rank does, the exit code of all, and what is said last.
struct End {
  const char* deed;
  int code;
  const char* last;
};

TEST(LaunchProgram, EndsLikeSubcommandsAndLeavesNothing) {
  for (const auto& [deed, code, last] :
       {End{"fails", 3, "rank 1 ended with exit code 3\n"},
        End{"throws",
            1,
            "[rank 1] joiner: out of luck\nmillrace launch: rank 1 ended with exit code 1\n"},
        End{"dies", 69, "rank 1 was ended by signal 9 (Killed)\n"},
        End{"leaves", 69, "rank 0 ended with exit code 69\n"},
        End{"stops", 75, "rank 1 was stopped (signal 19) and did not go on\n"},
        End{"differs", 78, "ended with exit code 78\n"}})
    for (const char* link : {"shm", "tcp"}) {
      Command command(
          launched(2,
                   "1 " + std::string(deed),
                   std::string("--heartbeat-timeout 1.5 --grace 3 --endpoint ") + link));
      const auto processes = command.workers(2);
      const Outcome outcome = command.end();

      EXPECT_EQ(outcome.code, code) << deed << " over " << link << ": " << outcome.errors;
      EXPECT_THAT(outcome.errors, EndsWith(last)) << deed << " over " << link;
      EXPECT_TRUE(all_gone(processes)) << deed << " over " << link;
    }
}

TEST(LaunchProgram, UncaughtHang_ExitsAsAHang) {
  const Outcome outcome =
      run(launched(2, "0 escapes 1 stops", "--endpoint tcp --heartbeat-timeout 1.5 --grace 3"));

  EXPECT_EQ(outcome.code, 75) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("rank 0 was ended by signal 6 (Aborted)\n"));
  EXPECT_THAT(outcome.errors, EndsWith("rank 1 was stopped (signal 19) and did not go on\n"));
}

TEST(LaunchProgram, CustomFieldDiffers_IsRejectedByName) {
  const Outcome outcome = run(launched(2, "1 differs"));

  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.errors,
              HasSubstr("corpus differs: rank 0 has 'the digits', rank 1 has 'another'"));
}

TEST(LaunchProgram, HoldsNoKeysOpenOnceTheyAreRead) {
  for (const auto& [link, counts] : {std::pair{"shm", "0 nameless files, then 0\n"},
                                     {"ipc", "0 nameless files, then 0\n"},
                                     {"tcp", "1 nameless files, then 0\n"}}) {
    const Outcome outcome = run(launched(2, "0 counts", std::string("--endpoint ") + link));
    EXPECT_THAT(outcome.output, StartsWith(counts)) << link;
  }
}

TEST(LaunchProgram, WritesBesideItsLog) {
  Command command(launched(2, "1 writes", "--log-dir LOGS"));
  command.await_end();

  EXPECT_EQ(test::text_of(command.logs() + "/note"), "a note\n");
  EXPECT_THAT(command.log(1), HasSubstr("rank 1: epoch"));
  EXPECT_EQ(command.end().code, 0);
}

TEST(LaunchProgram, IsEndedWithTheSignalOfTheLaunch) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
    Command command(launched(2, "all goes-on"));
    const auto processes = command.workers(2);
    command.await_training();
    command.signal(signal);
    const Outcome outcome = command.end();

    EXPECT_EQ(outcome.code, code) << outcome.errors;
    EXPECT_EQ(outcome.output, "");
    EXPECT_TRUE(all_gone(processes));
  }
}

TEST(LaunchProgram, ProgramInAShell_EndsWithKilledLaunch) {
  Command command("launch -n 2 -- sh -c '" + kJoiner + " all goes-on; true'");
  const auto shells = command.workers(2);
  ASSERT_EQ(shells.size(), 2U);
  command.await_training();
  std::vector<pid_t> programs;
  for (const pid_t shell : shells) {
    const std::string number = std::to_string(shell);
    std::istringstream line(test::text_of("/proc/" + number + "/task/" + number + "/children"));
    for (pid_t child = 0; line >> child;) programs.push_back(child);
  }
  ASSERT_EQ(programs.size(), 2U);
  command.signal(SIGKILL);

  const auto deadline = test::Clock::now() + std::chrono::seconds(10);
  while (!(all_gone(programs) && command.left_nothing()) && test::Clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_TRUE(all_gone(programs));
  for (const pid_t program : programs) ::kill(program, SIGKILL);  // should they be left
  EXPECT_EQ(command.end().code, 128 + SIGKILL);
}

}  // namespace
}  // namespace millrace
