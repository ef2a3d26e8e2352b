// The supervisor of ranks in processes of their own: a rank that dies, hangs or fails is named with
// what it said, and nothing is left.
#include "transport/peers.hpp"

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>

namespace millrace::testing_transport {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

std::vector<std::string> shell(const std::string& script) {
  return {"/bin/sh", "-c", script};
}

TEST(Peers, ComeTogetherAndEnd) {
  Supervisor supervisor(shell("printf c >&3; head -c 1 <&3; echo \" $MILLRACE_TEST_PEER\""));
  supervisor.start(1);
  supervisor.start(3);  // the other two
  EXPECT_EQ(supervisor.peers().size(), 3U);
  EXPECT_EQ(supervisor.together(3, 60s), "");
  EXPECT_EQ(supervisor.finish(60s), "");
}

TEST(Peers, WhoDiesIsNamedWithWhatItSaid) {
  Supervisor supervisor(shell(
      "case $MILLRACE_TEST_PEER in 1:*) echo no way; exit 3;; esac; printf c >&3; head -c 1 <&3"));
  supervisor.start(2);
  EXPECT_EQ(supervisor.together(2, 60s),
            "rank 1 did not come together with all, and said:\nno way\n");
}

TEST(Peers, FailureAtTheEnd_NamesRankAndCode) {
  Supervisor supervisor(shell("case $MILLRACE_TEST_PEER in 1:*) echo no way; exit 3;; esac"));
  supervisor.start(3);
  EXPECT_EQ(supervisor.finish(60s), "rank 1 ended with exit code 3, and said:\nno way\n");
}

TEST(Peers, WhoHangsIsNamedAndNothingIsLeft) {
  pid_t pid = -1;
  std::string place;
  {
    Supervisor supervisor(shell("exec sleep 1000"));
    supervisor.start(1);
    pid = supervisor.peers().front().pid;
    place = supervisor.directory();
    EXPECT_THAT(supervisor.together(1, 20ms), HasSubstr("rank 0 did not come together with all"));
    EXPECT_EQ(::kill(pid, 0), 0);
  }
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_FALSE(std::filesystem::exists(place));

  Supervisor supervisor(shell("exec sleep 1000"));
  supervisor.start(1);
  EXPECT_THAT(supervisor.finish(20ms), HasSubstr("rank 0 did not end"));
}

}  // namespace
}  // namespace millrace::testing_transport
