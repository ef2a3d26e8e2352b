// What only ranks that share memory can suffer: a peer that writes what no rank writes, that dies
// with a message half written, that is stopped, or whose children outlive it; strangers at its
// socket; and what a dead process left.
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "millrace/transport/failure.hpp"
#include "millrace/transport/hello.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/rendezvous.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "transport/conformance.hpp"
#include "transport/shared_memory/outbox.hpp"
#include "transport/shared_memory/parcel.hpp"
#include "transport/wire/frame.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using namespace shared_memory;
using testing::HasSubstr;
using testing::StartsWith;
using testing_transport::Endpoints;
using testing_transport::filled;
using testing_transport::forward_tag;
using testing_transport::Peer;
using testing_transport::same;
using testing_transport::soon;
using testing_transport::Supervisor;

/// Plays rank 1 of two by hand: it introduces itself with memory of its own and writes what it
/// wants.
class Impostor {
 public:
  explicit Impostor(const std::string& directory,
                    const Parcel& introduction = honest(),
                    std::chrono::milliseconds silence = 20s)
      : listener_(listen_at(directory + "/r1.0.shm", 4)), bell_(::eventfd(0, EFD_CLOEXEC)) {
    SharedMemoryOptions options;
    options.world = 2;
    options.directory = directory;
    options.silence = silence;
    SharedMemoryListener listener(options);
    end = listener.open({listener.address(), {"shm:" + directory + "/r1.0.shm"}});
    to_ = connect_to(directory + "/r0.0.shm");
    board = new (board_.memory.data()) Board{};
    outbox = new (outbox_.memory.data()) Outbox{};
    EXPECT_TRUE(send_parcel(
        to_.number(), introduction, {board_.file.number(), outbox_.file.number(), bell_.number()}));
  }

  static Parcel honest() { return {ParcelKind::Introduction, 0, 0, 1, 0, 0, 0, kProtocolVersion}; }

  /// A legal frame of 64 bytes, at the beginning of a segment that was given.
  static RingEntry frame(std::uint64_t sequence, int micro_batch) {
    DataHeader header;
    header.source = Rank{1};
    header.sequence = sequence;
    header.tag = forward_tag(micro_batch);
    header.tensor_count = 1;
    header.dims = {64};
    header.payload_bytes = 64;
    return {encode(header), {0, 64, 0, 0, 1}};
  }

  void give_segment(std::uint64_t claimed, int file) const {
    Parcel parcel = honest();
    parcel.kind = ParcelKind::Segment;
    parcel.bytes = claimed;
    EXPECT_TRUE(send_parcel(to_.number(), parcel, {file}));
  }

  /// What rank 0 says to a wait for the message.
  std::string heard(int micro_batch = 0) {
    try {
      (void)end->receive(Rank{1}, forward_tag(micro_batch), soon());
    } catch (const TransportError& error) {
      return error.what();
    }
    return "it came";
  }

  void die() { to_ = {}; }

 private:
  Descriptor listener_, to_, bell_;
  Region board_ = make_region(sizeof(Board), Sharing::Read);
  Region outbox_ = make_region(sizeof(Outbox), Sharing::Read);

 public:
  Board* board = nullptr;
  Outbox* outbox = nullptr;
  std::unique_ptr<Endpoint> end;
};

struct SharedMemoryFaults : testing::Test {
  PrivateDirectory directory{std::filesystem::temp_directory_path()};
};

TEST_F(SharedMemoryFaults, AFrameWrittenByHandArrives) {
  Impostor peer(directory.path());
  const Region segment = make_region(4096, Sharing::Write);
  peer.give_segment(4096, segment.file.number());
  RingWriter(peer.outbox->ring).put(Impostor::frame(0, 0));

  EXPECT_EQ(peer.heard(), "it came");
}

TEST_F(SharedMemoryFaults, ADamagedRingEndsTheEpochWithItsReason) {
  Impostor peer(directory.path());
  peer.outbox->ring.published = 1'000'000;

  EXPECT_EQ(peer.heard(),
            "rank 0 refuses the memory of rank 1: a ring of 256 frames claims to hold 1000000");
}

TEST_F(SharedMemoryFaults, AnEntryThatWasNotWrittenIsNoFrame) {
  Impostor peer(directory.path());
  RingWriter(peer.outbox->ring).put({});

  EXPECT_EQ(peer.heard(), "rank 0 refuses a frame of rank 1: magic");
}

TEST_F(SharedMemoryFaults, APlaceOutsideOfWhatWasGivenEndsTheEpoch) {
  Impostor peer(directory.path());
  RingWriter(peer.outbox->ring).put(Impostor::frame(0, 0));

  EXPECT_EQ(peer.heard(), "rank 0 refuses the memory of rank 1: a frame lies in segment 0 of 0");
}

TEST_F(SharedMemoryFaults, ASegmentThatIsSmallerThanItClaimsEndsTheEpoch) {
  Impostor peer(directory.path());
  const Region segment = make_region(4096, Sharing::Write);
  peer.give_segment(1U << 20U, segment.file.number());

  EXPECT_THAT(peer.heard(), HasSubstr("what was given as shared memory of 1048576 bytes is none"));
}

TEST_F(SharedMemoryFaults, AReaderThatCountsBackwardsEndsTheEpoch) {
  Impostor peer(directory.path());
  peer.outbox->consumed = 99;
  peer.end->send(Rank{1}, forward_tag(0), TensorList());

  EXPECT_THAT(peer.heard(),
              StartsWith("rank 0 refuses the memory of rank 1: the reader of a ring says that it "
                         "has read 99 frames"));
}

TEST_F(SharedMemoryFaults, AMessageThatWasHalfWrittenAtItsWritersEndIsNeverRead) {
  Impostor peer(directory.path());
  const Region segment = make_region(4096, Sharing::Write);
  peer.give_segment(4096, segment.file.number());
  RingWriter writer(peer.outbox->ring);
  writer.put(Impostor::frame(0, 0));
  RingEntry second = Impostor::frame(1, 1);
  DataHeader header;  // the first of two tensors; the other never comes
  header.source = Rank{1};
  header.sequence = 1;
  header.tag = forward_tag(1);
  header.tensor_count = 2;
  header.dims = {64};
  header.payload_bytes = 64;
  second.header = encode(header);
  writer.put(second);
  EXPECT_EQ(peer.heard(0), "it came");
  peer.die();

  EXPECT_THAT(peer.heard(1), StartsWith("lost rank 1: its connection ended; everyone waits"));
}

TEST_F(SharedMemoryFaults, WhoGivesNoSignOfLifeIsNamed) {
  Impostor peer(directory.path(), Impostor::honest(), 200ms);

  EXPECT_THAT(peer.heard(), StartsWith("rank 1 is silent; everyone waits for rank 1"));
}

TEST_F(SharedMemoryFaults, ReasonsAreCutAndCausesHeldToThoseThereAre) {
  Impostor peer(directory.path());
  peer.board->text_bytes = 4'000'000'000;
  peer.board->text.fill('x');
  peer.board->stop = 4'000'000'000;

  EXPECT_EQ(peer.heard(), std::string(kLongestText, 'x'));
}

TEST_F(SharedMemoryFaults, WhoIsOfAnotherJobOrEpochOrNobodyIsNotLetIn) {
  Parcel job = Impostor::honest(), epoch = job, version = job, self = job, outside = job,
         kind = job;
  job.job = 1;
  epoch.epoch = 1;
  version.version = kProtocolVersion + 1;
  self.source = 0;
  outside.source = 2;
  kind.kind = ParcelKind::Segment;
  for (const Parcel& parcel : {job, epoch, version, self, outside, kind}) {
    const PrivateDirectory own(std::filesystem::temp_directory_path());
    Impostor peer(own.path(), parcel, 200ms);
    RingWriter(peer.outbox->ring).put(Impostor::frame(0, 0));
    EXPECT_THAT(peer.heard(), StartsWith("rank 1 is silent"));
  }
}

/// The ranks' endpoints in a directory that goes last.
struct ThreeRanks {
  explicit ThreeRanks(std::optional<std::chrono::milliseconds> hang = {}) {
    SharedMemoryOptions options;
    options.world = 3;
    options.directory = directory.path();
    options.heartbeat = 5ms;
    options.hang = hang;
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

TEST(SharedMemoryLiveness, ALostPeerIsNamedWithWhatEveryRankDid) {
  ThreeRanks ranks;
  std::string message;
  std::jthread waiting([&] { message = ranks.heard(1, 0); });
  ranks.ends[0].reset();  // no goodbye
  waiting.join();

  EXPECT_THAT(message, HasSubstr("lost rank 0: its connection ended; everyone waits for rank 0"));
  EXPECT_THAT(message, HasSubstr("rank 1 waits for activation for stage 1, micro-batch 3"));
  EXPECT_THAT(message, HasSubstr("\n  rank 2 "));
  EXPECT_THAT(ranks.heard(2, 1), StartsWith("lost rank 0: its connection ended; everyone waits"));
}

TEST(SharedMemoryLiveness, AWaitForARankThatSaidGoodbyeEndsAtOnce) {
  ThreeRanks ranks;
  {
    std::jthread leaving([&] { ranks.ends[0]->goodbye(soon()); });
    EXPECT_THAT(ranks.heard(1, 0), StartsWith("rank 0 said goodbye before the activation for"));
  }
  EXPECT_THROW(ranks.ends[1]->send(Rank{0}, forward_tag(0), TensorList()), PeerLost);
}

TEST(SharedMemoryLiveness, ARankThatDoesNotEndItsPassIsNamedOnEveryRank) {
  const ThreeRanks ranks(100ms);
  std::array<std::string, 3> reports;
  ranks.ends[0]->working({.what = "F", .step = 2, .micro_batch = MicroBatch{0}});
  ranks.ends[0]->working({.what = "F", .step = 2, .micro_batch = MicroBatch{1}});  // never ends
  std::jthread one([&] { reports[1] = ranks.heard(1, 0); });
  std::jthread two([&] { reports[2] = ranks.heard(2, 1); });
  one.join();
  two.join();
  reports[0] = ranks.heard(0, 1);

  for (const std::string& report : reports) {
    EXPECT_THAT(report,
                HasSubstr("everyone waits for rank 0: F of stage 0, micro-batch 1 of step 2"));
    EXPECT_THAT(report, HasSubstr("(rank 2 <- 1 <- 0)"));
  }
}

TEST(SharedMemoryListening, ALivingRankKeepsItsPlaceAndADeadOnesIsTakenOver) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const SharedMemoryOptions options{.world = 2, .directory = directory.path()};
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
  EXPECT_THROW(SharedMemoryListener({.world = 0}), InvalidArgument);
  EXPECT_THROW(SharedMemoryListener({.rank = Rank{2}, .world = 2}), InvalidArgument);
  EXPECT_THROW(SharedMemoryListener({.world = 2, .directory = "/"}), TransportError);
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const std::string deep = directory.path() + "/" + std::string(100, 'd');
  std::filesystem::create_directory(deep);
  std::filesystem::permissions(deep, std::filesystem::perms::owner_all);
  EXPECT_THROW(SharedMemoryListener({.world = 2, .directory = deep}), InvalidArgument);
  SharedMemoryListener listener({.world = 2, .directory = directory.path()});
  EXPECT_THROW((void)listener.courier("tcp://127.0.0.1:1", 100), InvalidArgument);
}

/// Ranks in processes of their own; this one supervises, and holds what it is told at the end
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
    options.silence = 2s;
    options.hang = hang;
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

/// What the rank is told, which must not take long.
std::string told(Endpoint& end, const MessageTag& tag) {
  const auto start = std::chrono::steady_clock::now();
  try {
    (void)end.receive(Rank{1}, tag, soon());
  } catch (const TransportError& error) {
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
    return error.what();
  }
  return "it came";
}

TEST(SharedMemoryProcessFaults, AKilledRankIsNamedAndWhatItHadWrittenStays) {
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
        EXPECT_THAT(told(end, forward_tag(9)),
                    StartsWith("lost rank 1: its connection ended; everyone waits for rank 1: F of "
                               "stage 1, micro-batch 6 of step 2"));
        if (end.rank() == Rank{0}) {
          EXPECT_TRUE(same(held[0], filled(DType::F32, {1 << 18}, 4)));
        }
      },
      "rank 1 was ended by signal 9");
}

TEST(SharedMemoryProcessFaults, AStoppedRankIsNamedWithItsVeryAction) {
  in_processes(
      3,
      [](Endpoint& end, const std::string& directory) {
        const std::string file = directory + "/stopped";
        if (end.rank() == Rank{1}) {
          std::ofstream(file) << ::getpid();
          end.working({.what = "F", .step = 2, .stage = Stage{1}, .micro_batch = MicroBatch{6}});
          ::raise(SIGSTOP);
        }
        EXPECT_THAT(told(end, forward_tag(9)),
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
TEST(SharedMemoryProcessFaults, ARankWhoseChildLivesOnIsLostAllTheSame) {
  in_processes(
      2,
      [](Endpoint& end, const std::string& directory) {
        const std::string file = directory + "/child";
        if (end.rank() == Rank{1}) {
          (void)end.receive(Rank{0}, forward_tag(0), soon());
          const pid_t child = ::fork();
          if (child == 0) {
            ::alarm(30);  // whatever becomes of the test
            ::pause();
            ::_exit(0);
          }
          std::ofstream(file) << child;
          ::raise(SIGKILL);
        }
        end.send(Rank{1}, forward_tag(0), TensorList());
        const auto start = std::chrono::steady_clock::now();
        EXPECT_THAT(told(end, forward_tag(9)), StartsWith("lost rank 1: its connection ended"));
        EXPECT_LT(std::chrono::steady_clock::now() - start, 1900ms);  // before it counts as silent
        pid_t child = 0;
        std::ifstream(file) >> child;
        if (child > 0) ::kill(child, SIGKILL);
      },
      "rank 1 was ended by signal 9");
}

}  // namespace
}  // namespace millrace
