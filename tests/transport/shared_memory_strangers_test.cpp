// Who writes what no rank writes into memory that ranks share, and who comes to a rank's socket and
// is none.
#include <array>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "transport/conformance.hpp"
#include "transport/introduction_campaign.hpp"
#include "transport/repetitions.hpp"
#include "transport/shared_memory/descriptor_message.hpp"
#include "transport/shared_memory/send_queue.hpp"
#include "transport/wire/frame.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using namespace shared_memory;
using testing::HasSubstr;
using testing::StartsWith;
using testing_transport::forward_tag;
using testing_transport::soon;

/// Plays rank 1 of two by hand: it introduces itself with memory of its own and writes what it
/// wants.
class Impostor {
 public:
  explicit Impostor(const std::string& directory,
                    const DescriptorMessage& introduction = honest(),
                    std::chrono::milliseconds silence = 20s,
                    Descriptor bell = Descriptor(::eventfd(0, EFD_CLOEXEC)))
      : listener_(listen_at(directory + "/r1.0.shm", 4)), bell_(std::move(bell)) {
    SharedMemoryOptions options;
    options.world = 2;
    options.directory = directory;
    options.heartbeat_timeout = silence;
    SharedMemoryListener listener(options);
    end = listener.open({listener.address(), {"shm:" + directory + "/r1.0.shm"}});
    to_ = connect_to(directory + "/r0.0.shm");
    board = new (board_.memory.data()) Board{};
    send_queue = new (send_queue_.memory.data()) SendQueue{};
    EXPECT_TRUE(send_message(to_.number(),
                             introduction,
                             {board_.file.number(), send_queue_.file.number(), bell_.number()}));
  }

  static DescriptorMessage honest() {
    return {DescriptorMessageKind::Introduction, 0, 0, 1, 0, 0, 0, kProtocolVersion};
  }

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
    DescriptorMessage message = honest();
    message.kind = DescriptorMessageKind::Segment;
    message.bytes = claimed;
    EXPECT_TRUE(send_message(to_.number(), message, {file}));
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
  Region send_queue_ = make_region(sizeof(SendQueue), Sharing::Read);

 public:
  Board* board = nullptr;
  SendQueue* send_queue = nullptr;
  std::unique_ptr<Endpoint> end;
};

struct SharedMemoryFaults : testing::Test {
  PrivateDirectory directory{std::filesystem::temp_directory_path()};
};

TEST_F(SharedMemoryFaults, AFrameWrittenByHandArrives) {
  Impostor peer(directory.path());
  const Region segment = make_region(4096, Sharing::Write);
  peer.give_segment(4096, segment.file.number());
  RingWriter(peer.send_queue->ring).put(Impostor::frame(0, 0));

  EXPECT_EQ(peer.heard(), "it came");
}

TEST_F(SharedMemoryFaults, DamagedRing_EndsTheEpoch) {
  Impostor peer(directory.path());
  peer.send_queue->ring.published = 1'000'000;

  EXPECT_EQ(peer.heard(),
            "rank 0 refuses the memory of rank 1: a ring of 256 frames claims to hold 1000000");
}

TEST_F(SharedMemoryFaults, UnwrittenEntry_IsNotAFrame) {
  Impostor peer(directory.path());
  RingWriter(peer.send_queue->ring).put({});

  EXPECT_EQ(peer.heard(), "rank 0 refuses a frame of rank 1: magic");
}

TEST_F(SharedMemoryFaults, OutsidePosition_EndsTheEpoch) {
  Impostor peer(directory.path());
  RingWriter(peer.send_queue->ring).put(Impostor::frame(0, 0));

  EXPECT_EQ(peer.heard(), "rank 0 refuses the memory of rank 1: a frame lies in segment 0 of 0");
}

TEST_F(SharedMemoryFaults, SmallSegment_EndsTheEpoch) {
  Impostor peer(directory.path());
  const Region segment = make_region(4096, Sharing::Write);
  peer.give_segment(1U << 20U, segment.file.number());

  EXPECT_THAT(peer.heard(), HasSubstr("what was given as shared memory of 1048576 bytes is none"));
}

TEST_F(SharedMemoryFaults, AReaderThatCountsBackwardsEndsTheEpoch) {
  Impostor peer(directory.path());
  peer.send_queue->consumed = 99;
  peer.end->send(Rank{1}, forward_tag(0), TensorList());

  EXPECT_THAT(peer.heard(),
              StartsWith("rank 0 refuses the memory of rank 1: the reader of a ring says that it "
                         "has read 99 frames"));
}

TEST_F(SharedMemoryFaults, HalfWrittenMessage_IsNeverRead) {
  Impostor peer(directory.path());
  const Region segment = make_region(4096, Sharing::Write);
  peer.give_segment(4096, segment.file.number());
  RingWriter writer(peer.send_queue->ring);
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

TEST_F(SharedMemoryFaults, MissingHeartbeat_NamesTheRank) {
  Impostor peer(directory.path(), Impostor::honest(), 200ms);

  EXPECT_THAT(peer.heard(), StartsWith("rank 1 is silent; everyone waits for rank 1"));
}

TEST_F(SharedMemoryFaults, LongReasons_AreCut) {
  Impostor peer(directory.path());
  peer.board->text_bytes = 4'000'000'000;
  peer.board->text.fill('x');
  peer.board->stop = 4'000'000'000;

  EXPECT_EQ(peer.heard(), std::string(kLongestText, 'x'));
}

TEST_F(SharedMemoryFaults, DangerousDoorbell_EndsTheEpoch) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  ::close(pipe[0]);  // a write raises SIGPIPE
  Impostor peer(directory.path(), Impostor::honest(), 20s, Descriptor(pipe[1]));

  EXPECT_EQ(peer.heard(), "rank 0 refuses the memory of rank 1: what was given as a bell is none");
}

TEST_F(SharedMemoryFaults, OtherJobOrEpoch_IsRejected) {
  DescriptorMessage job = Impostor::honest(), epoch = job, version = job, self = job, outside = job,
                    kind = job;
  job.job = 1;
  epoch.epoch = 1;
  version.version = kProtocolVersion + 1;
  self.source = 0;
  outside.source = 2;
  kind.kind = DescriptorMessageKind::Segment;
  for (const DescriptorMessage& message : {job, epoch, version, self, outside, kind}) {
    const PrivateDirectory own(std::filesystem::temp_directory_path());
    Impostor peer(own.path(), message, 200ms);
    RingWriter(peer.send_queue->ring).put(Impostor::frame(0, 0));
    EXPECT_THAT(peer.heard(), StartsWith("rank 1 is silent"));
  }
}

TEST(SharedMemoryStrangers, AnyMessage_IsRejected) {
  const IntroductionResult all =
      run_introduction_campaign(1, static_cast<int>(testing_transport::times(200)));

  EXPECT_EQ(all.wrong, "");
  EXPECT_GT(all.let_in, 0);
  EXPECT_GT(all.arrived, 0);
  EXPECT_GT(all.ended, 0);
}

TEST(SharedMemoryStrangers, WhoSayNothingMakeRoomForOthers) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const Impostor peer(directory.path());
  std::vector<Descriptor> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(connect_to(directory.path() + "/r0.0.shm"));
    ASSERT_TRUE(silent.back());
  }
  const auto arrival = [](const Descriptor& line) {
    return receive_message(line.number()).arrival;
  };
  const auto end = soon();
  while (arrival(silent.front()) == Arrival::Nothing && std::chrono::steady_clock::now() < end) {
    const auto turn = std::chrono::steady_clock::now() + 1ms;
    EXPECT_THROW((void)peer.end->receive(Rank{1}, forward_tag(0), turn), TransportError);
  }
  EXPECT_EQ(arrival(silent.front()), Arrival::Ended);
  EXPECT_EQ(arrival(silent.back()), Arrival::Nothing);
}

TEST(SharedMemoryStrangers, WhoLetNobodyInKeepNobodyWaiting) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const std::string path = directory.path() + "/closed";
  const Descriptor listener = listen_at(path, 0);
  std::vector<Descriptor> before;
  do {
    before.push_back(connect_to(path));
    ASSERT_LT(before.size(), 10U);
  } while (before.back());
}

}  // namespace
}  // namespace millrace
