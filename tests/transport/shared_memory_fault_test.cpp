// What only ranks that share memory can suffer: a peer that dies, that is stopped, or whose
// children outlive it; and what a dead process left.
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "transport/conformance.hpp"
#include "transport/shared_memory/descriptor_message.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using namespace shared_memory;
using testing::HasSubstr;
using testing::StartsWith;
using testing_transport::await_wait;
using testing_transport::Endpoints;
using testing_transport::filled;
using testing_transport::forward_tag;
using testing_transport::Peer;
using testing_transport::same;
using testing_transport::soon;
using testing_transport::Supervisor;

/// The ranks' endpoints in a directory that goes last.
struct ThreeRanks {
  explicit ThreeRanks(std::optional<std::chrono::milliseconds> hang = {}) {
    SharedMemoryOptions options;
    options.world = 3;
    options.directory = directory.path();
    options.heartbeat = 5ms;
    options.action_timeout = hang;
    ends = shared_memory_mesh(options);
  }

  std::string heard(int self, int from) const {
    try {
      (void)ends[static_cast<std::size_t>(self)]->receive(
          Rank{from}, forward_tag(3, self, 2), soon());
    } catch (const TransportError& error) {
      return error.what();
    }
    return "it came";
  }

  PrivateDirectory directory{std::filesystem::temp_directory_path()};
  Endpoints ends;
};

TEST(SharedMemoryLiveness, LostPeer_IsNamedWithAllActions) {
  ThreeRanks ranks;
  std::string message;
  std::jthread waiting([&] { message = ranks.heard(1, 0); });
  await_wait(*ranks.ends[1]);
  ranks.ends[0].reset();  // no shutdown message
  waiting.join();

  EXPECT_THAT(message, HasSubstr("lost rank 0: its connection ended; everyone waits for rank 0"));
  EXPECT_THAT(message, HasSubstr("rank 1 waits for activation for stage 1, micro-batch 3"));
  EXPECT_THAT(message, HasSubstr("\n  rank 2 "));
  EXPECT_THAT(ranks.heard(2, 1), StartsWith("lost rank 0: its connection ended; everyone waits"));
}

TEST(SharedMemoryLiveness, WaitAfterShutdown_EndsAtOnce) {
  ThreeRanks ranks;
  {
    std::jthread leaving([&] { ranks.ends[0]->leave(soon()); });
    EXPECT_THAT(ranks.heard(1, 0), StartsWith("rank 0 left before the activation for"));
  }
  EXPECT_THROW(ranks.ends[1]->send(Rank{0}, forward_tag(0), TensorList()), PeerLost);
}

TEST(SharedMemoryLiveness, HangingRank_NamedEverywhere) {
  const ThreeRanks ranks(100ms);
  std::array<std::string, 3> reports;
  std::jthread one([&] { reports[1] = ranks.heard(1, 0); });
  std::jthread two([&] { reports[2] = ranks.heard(2, 1); });
  for (const int waiting : {1, 2}) await_wait(*ranks.ends[static_cast<std::size_t>(waiting)]);
  ranks.ends[0]->working({.what = "F", .step = 2, .micro_batch = MicroBatch{0}});
  ranks.ends[0]->working({.what = "F", .step = 2, .micro_batch = MicroBatch{1}});  // never ends
  one.join();
  two.join();
  reports[0] = ranks.heard(0, 1);

  for (const std::string& report : reports) {
    EXPECT_THAT(report,
                HasSubstr("everyone waits for rank 0: F of stage 0, micro-batch 1 of step 2"));
    EXPECT_THAT(report, HasSubstr("(rank 2 <- 1 <- 0)"));
  }
}

TEST(SharedMemoryListening, DeadRank_IsReplacedALivingOneNot) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const SharedMemoryOptions options{{{.world = 2}}, directory.path()};
  const std::string path = directory.path() + "/r0.0.shm";
  {
    const SharedMemoryListener living(options);
    EXPECT_THROW(SharedMemoryListener{options}, TransportError);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  static_cast<void>(listen_at(path, 1));  // closed, but its file is left
  EXPECT_NO_THROW(SharedMemoryListener{options});

  std::ofstream(path) << "mine";
  EXPECT_THROW(SharedMemoryListener{options}, TransportError);
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
}

TEST(SharedMemoryListening, RefusesWhatDoesNotFit) {
  EXPECT_THROW(SharedMemoryListener({{{.world = 0}}}), InvalidArgument);
  EXPECT_THROW(SharedMemoryListener({{{.rank = Rank{2}, .world = 2}}}), InvalidArgument);
  EXPECT_THROW(SharedMemoryListener({{{.world = 2}}, "/"}), TransportError);
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const std::string deep = directory.path() + "/" + std::string(100, 'd');
  std::filesystem::create_directory(deep);
  std::filesystem::permissions(deep, std::filesystem::perms::owner_all);
  EXPECT_THROW(SharedMemoryListener({{{.world = 2}}, deep}), InvalidArgument);
  SharedMemoryListener listener({{{.world = 2}}, directory.path()});
  EXPECT_THROW((void)listener.rendezvous_channel("tcp://127.0.0.1:1", 100), InvalidArgument);
}

/// Ranks in processes of their own; this one supervises, and holds what it gets at the end
/// against `expected`, or is the rank that `work` runs.
void in_processes(int world,
                  const std::function<void(Endpoint&, const std::string& directory)>& work,
                  const std::string& expected,
                  std::optional<std::chrono::milliseconds> hang = {}) {
  if (const auto peer = Peer::self()) {
    SharedMemoryOptions options;
    options.rank = peer->rank();
    options.world = world;
    options.directory = peer->directory();
    options.heartbeat_timeout = 2s;
    options.action_timeout = hang;
    const auto end =
        meet({.url = "ipc://" + peer->directory() + "/rendezvous"}, SharedMemoryListener(options));
    work(*end, peer->directory());
    return;
  }
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  Supervisor supervisor(
      {std::filesystem::read_symlink("/proc/self/exe"),
       std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name(),
       "--gtest_brief=1"});
  supervisor.start(world);
  EXPECT_THAT(supervisor.finish(60s), StartsWith(expected));
}

/// The error that the rank gets, which must not take long.
std::string reported(Endpoint& end, const MessageTag& tag) {
  const auto start = std::chrono::steady_clock::now();
  try {
    (void)end.receive(Rank{1}, tag, soon());
  } catch (const TransportError& error) {
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
    return error.what();
  }
  return "it came";
}

TEST(SharedMemoryProcessFaults, KilledRank_NamedMessagesStay) {
  in_processes(
      3,
      [](Endpoint& end, const std::string&) {
        if (end.rank() == Rank{1}) {
          end.send(Rank{0}, forward_tag(0), TensorList(filled(DType::F32, {1 << 18}, 4)));
          end.working({.what = "F", .step = 2, .stage = Stage{1}, .micro_batch = MicroBatch{5}});
          (void)end.receive(Rank{2}, forward_tag(0), soon());  // all know each other
          end.working({.what = "F", .step = 2, .stage = Stage{1}, .micro_batch = MicroBatch{6}});
          ::raise(SIGKILL);
        }
        TensorList held;
        if (end.rank() == Rank{0}) held = end.receive(Rank{1}, forward_tag(0), soon());
        if (end.rank() == Rank{0}) end.send(Rank{2}, forward_tag(0), TensorList());
        if (end.rank() == Rank{2}) (void)end.receive(Rank{0}, forward_tag(0), soon());
        if (end.rank() == Rank{2}) end.send(Rank{1}, forward_tag(0), TensorList());
        EXPECT_THAT(reported(end, forward_tag(9)),
                    StartsWith("lost rank 1: its connection ended; everyone waits for rank 1: F of "
                               "stage 1, micro-batch 6 of step 2"));
        if (end.rank() == Rank{0}) {
          EXPECT_TRUE(same(held[0], filled(DType::F32, {1 << 18}, 4)));
        }
      },
      "rank 1 was ended by signal 9");
}

TEST(SharedMemoryProcessFaults, StoppedRank_NamedWithAction) {
  in_processes(
      3,
      [](Endpoint& end, const std::string& directory) {
        const std::string file = directory + "/stopped";
        if (end.rank() == Rank{1}) {
          std::ofstream(file) << ::getpid();
          end.working({.what = "F", .step = 2, .stage = Stage{1}, .micro_batch = MicroBatch{6}});
          ::raise(SIGSTOP);
        }
        EXPECT_THAT(reported(end, forward_tag(9)),
                    StartsWith("rank 1 is silent; everyone waits for rank 1: F of stage 1, "
                               "micro-batch 6 of step 2"));
        pid_t stopped = 0;
        std::ifstream(file) >> stopped;
        if (end.rank() == Rank{0} && stopped > 0) ::kill(stopped, SIGKILL);
      },
      "rank 1 was ended by signal 9",
      20ms);  // an action may take 0.24 s: a process that does not run does not hang
}

/// A child of the dead rank holds copies of all its descriptors, so no connection ends.
TEST(SharedMemoryProcessFaults, RankWithLivingChild_IsLost) {
  in_processes(
      2,
      [](Endpoint& end, const std::string& directory) {
        const std::string file = directory + "/child";
        if (end.rank() == Rank{1}) {
          (void)end.receive(Rank{0}, forward_tag(0), soon());
          const pid_t child = ::fork();
          if (child == 0) {
            ::alarm(30);  // in any case
            ::pause();
            ::_exit(0);
          }
          std::ofstream(file) << child;
          ::raise(SIGKILL);
        }
        end.send(Rank{1}, forward_tag(0), TensorList());
        const auto start = std::chrono::steady_clock::now();
        EXPECT_THAT(reported(end, forward_tag(9)), StartsWith("lost rank 1: its connection ended"));
        EXPECT_LT(std::chrono::steady_clock::now() - start, 1900ms);  // before it counts as silent
        pid_t child = 0;
        std::ifstream(file) >> child;
        if (child > 0) ::kill(child, SIGKILL);
      },
      "rank 1 was ended by signal 9");
}

}  // namespace
}  // namespace millrace
