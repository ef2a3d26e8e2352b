// Ranks that are connected over tcp, of which those of one host share memory: the conformance
// suites, where some pairs do and others do not, and that both ways keep one promise.
#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include <gmock/gmock.h>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/conformance.hpp"
#include "transport/meeting_conformance.hpp"
#include "transport/shared_memory/descriptor_message.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using testing_transport::Endpoints;
using testing_transport::filled;
using testing_transport::forward_tag;
using testing_transport::Gathering;
using testing_transport::ListenersUnderTest;
using testing_transport::MeetingConformance;
using testing_transport::soon;
using testing_transport::TransportConformance;
using testing_transport::TransportUnderTest;

/// Two ranks share a host: 0 and 1, 2 and 3, and so on.
ZeroMqOptions mixed_options(Rank rank, int world, const std::vector<ChannelDepth>& depths = {}) {
  ZeroMqOptions options;
  options.rank = rank;
  options.world = world;
  options.link = ZeroMqLink::Tcp;
  options.insecure = true;
  options.depths = depths;
  options.local_group = "host " + std::to_string(rank.value / 2);
  return options;
}

bool lies_in_shared_memory(const Tensor& tensor) {
  std::ifstream maps("/proc/self/maps");
  const auto at = reinterpret_cast<std::uintptr_t>(tensor.data());
  for (std::string line; std::getline(maps, line);) {
    const std::uintptr_t begin = std::stoull(line, nullptr, 16);
    const std::uintptr_t end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
    if (begin <= at && at < end) return line.find("memfd:millrace") != std::string::npos;
  }
  return false;
}

Tensor sent_by(Endpoint& from, Endpoint& to, std::uint64_t step) {
  MessageTag tag = forward_tag(7, 9, step);
  tag.direction = Direction::Collective;
  from.send(to.rank(), tag, TensorList(filled(DType::U8, {1 << 15}, static_cast<int>(step))));
  return std::move(to.receive(from.rank(), tag, soon())[0]);
}

/// Two that know each other only now send the first messages over tcp.
bool come_to_share(Endpoint& from, Endpoint& to) {
  const Deadline end = soon();
  for (std::uint64_t step = 1'000'000; std::chrono::steady_clock::now() < end; ++step)
    if (lies_in_shared_memory(sent_by(from, to, step))) return true;
  return false;
}

struct MixedMesh {
  std::vector<std::unique_ptr<ZeroMqListener>> listeners;
  Endpoints ends;

  /// `change` may change what a rank learns of the others.
  explicit MixedMesh(int world,
                     const std::vector<ChannelDepth>& depths = {},
                     const std::function<void(Rank, std::vector<PeerAddress>&)>& change = {},
                     std::chrono::milliseconds heartbeat = ZeroMqOptions().heartbeat) {
    const auto context = std::make_shared<ZeroMqContext>();
    std::vector<PeerAddress> addresses;
    for (int i = 0; i < world; ++i) {
      ZeroMqOptions options = mixed_options(Rank{i}, world, depths);
      options.heartbeat = heartbeat;
      listeners.push_back(std::make_unique<ZeroMqListener>(options, context));
      addresses.push_back(listeners.back()->address());
    }
    for (int i = 0; i < world; ++i) {
      std::vector<PeerAddress> reported = addresses;
      if (change) change(Rank{i}, reported);
      ends.push_back(listeners[static_cast<std::size_t>(i)]->open(reported));
    }
  }
};

Endpoints connected_mixed(int world, const std::vector<ChannelDepth>& depths) {
  MixedMesh mesh(world, depths);
  for (std::size_t i = 0; i + 1 < mesh.ends.size(); i += 2) {
    EXPECT_TRUE(come_to_share(*mesh.ends[i], *mesh.ends[i + 1]));
    EXPECT_TRUE(come_to_share(*mesh.ends[i + 1], *mesh.ends[i]));
  }
  return std::move(mesh.ends);
}

/// This process as one rank.
std::unique_ptr<Endpoint> joined_mixed(Rank rank,
                                       int world,
                                       const std::vector<ChannelDepth>& depths,
                                       const std::string& directory,
                                       std::uint32_t number) {
  ZeroMqOptions options = mixed_options(rank, world, depths);
  options.directory = directory;
  options.epoch = number;
  return meet({.url = "ipc://" + directory + "/rendezvous-" + std::to_string(number)},
              ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
}

Gathering listening_mixed(int world, const std::string& directory) {
  const auto context = std::make_shared<ZeroMqContext>();
  Gathering all{{}, "ipc://" + directory + "/rendezvous"};
  for (int i = 0; i < world; ++i)
    all.listeners.push_back(
        std::make_unique<ZeroMqListener>(mixed_options(Rank{i}, world), context));
  return all;
}

TEST(ZeroMqNeighbours, ShareMemoryAndSayWithWhom) {
  const MixedMesh mesh(3);
  EXPECT_TRUE(come_to_share(*mesh.ends[0], *mesh.ends[1]));
  EXPECT_TRUE(come_to_share(*mesh.ends[1], *mesh.ends[0]));
  for (std::uint64_t step = 0; step < 3; ++step) {
    EXPECT_TRUE(lies_in_shared_memory(sent_by(*mesh.ends[0], *mesh.ends[1], step)));
    EXPECT_FALSE(lies_in_shared_memory(sent_by(*mesh.ends[0], *mesh.ends[2], step)));
    EXPECT_FALSE(lies_in_shared_memory(sent_by(*mesh.ends[2], *mesh.ends[1], step)));
  }

  EXPECT_EQ(mesh.listeners[1]->connections(), "rank 1 shares memory with rank 0");
  EXPECT_EQ(mesh.listeners[2]->connections(), "rank 2 shares its host with no other: all over tcp");
}

TEST(ZeroMqNeighbours, SilentNeighbour_IsReachedOverTcp) {
  const auto elsewhere = [](Rank rank, std::vector<PeerAddress>& addresses) {
    if (rank != Rank{1}) return;
    std::string& text = addresses[0].text;
    text = text.substr(0, text.rfind('\t') + 1) + "@millrace-nothing";
  };
  const MixedMesh mesh(2, {}, elsewhere);
  for (std::uint64_t step = 0; step < 50; ++step) {
    EXPECT_FALSE(lies_in_shared_memory(sent_by(*mesh.ends[0], *mesh.ends[1], step)));
    EXPECT_FALSE(lies_in_shared_memory(sent_by(*mesh.ends[1], *mesh.ends[0], step)));
  }

  EXPECT_EQ(mesh.listeners[1]->connections(),
            "rank 1 does not reach rank 0 of its host there, and sends to it over tcp");
}

TEST(ZeroMqNeighbours, Lost_WithTheReportOfAllRanks) {
  Endpoints ends = connected_mixed(4, {});
  std::array<std::string, 4> reported;
  {
    std::vector<std::jthread> waiting;
    for (const std::size_t i : {1U, 2U, 3U})
      waiting.emplace_back([&, i] {
        try {
          (void)ends[i]->receive(Rank{static_cast<int>(i ^ 1U)}, forward_tag(3), soon());
        } catch (const PeerLost& error) {
          reported[i] = error.what();
        }
      });
    ends[0].reset();  // no shutdown message
  }

  for (const std::size_t i : {1U, 2U, 3U}) {
    EXPECT_THAT(reported[i], StartsWith("lost rank 0: its connection ended; everyone waits")) << i;
    EXPECT_THAT(reported[i], HasSubstr("\n  rank 3 ")) << i;
  }
}

/// Nothing but news ends a rest of an hour.
TEST(ZeroMqNeighbours, WaitingAtMemory_ReceiveTcpToo) {
  const MixedMesh mesh(3, {}, {}, std::chrono::hours(1));
  ASSERT_TRUE(come_to_share(*mesh.ends[0], *mesh.ends[1]));
  std::string reported;
  std::jthread waiting([&] {
    try {
      (void)mesh.ends[1]->receive(Rank{0}, forward_tag(0), soon());
    } catch (const TransportError& error) {
      reported = error.what();
    }
  });
  mesh.ends[2]->cancel("enough");
  waiting.join();

  EXPECT_EQ(reported, "enough");
}

/// A process that comes in the place of rank 1, which is not there, with invalid memory.
TEST(ZeroMqNeighbours, InvalidMemory_IsRejectedOnAllRanks) {
  using namespace shared_memory;
  const auto context = std::make_shared<ZeroMqContext>();
  std::vector<std::unique_ptr<ZeroMqListener>> listeners;
  std::vector<PeerAddress> addresses;
  for (int i = 0; i < 3; ++i) {
    listeners.push_back(std::make_unique<ZeroMqListener>(mixed_options(Rank{i}, 3), context));
    addresses.push_back(listeners.back()->address());
  }
  const auto zero = listeners[0]->open(addresses);
  const auto two = listeners[2]->open(addresses);
  const Descriptor line = connect_to(addresses[0].text.substr(addresses[0].text.rfind('\t') + 1));
  const DescriptorMessage message{
      DescriptorMessageKind::Introduction, 0, 0, 1, 0, 0, 0, kProtocolVersion};
  const Region wrong = make_region(4096, Sharing::Read);
  const int file = wrong.file.number();
  ASSERT_TRUE(send_message(line.number(), message, {file, file, file}));

  for (Endpoint* end : {zero.get(), two.get()}) {
    std::string reported;
    try {
      (void)end->receive(Rank{1}, forward_tag(0), soon());
    } catch (const TransportError& error) {
      reported = error.what();
    }
    EXPECT_THAT(reported,
                StartsWith("rank 0 refuses the memory of rank 1: what was given as shared"));
  }
}

INSTANTIATE_TEST_SUITE_P(ZmqNeighbours,
                         TransportConformance,
                         testing::Values(TransportUnderTest{"tcp and memory", connected_mixed}));
INSTANTIATE_TEST_SUITE_P(ZmqNeighbours,
                         MeetingConformance,
                         testing::Values(ListenersUnderTest{"tcp and memory", listening_mixed}));
INSTANTIATE_TEST_SUITE_P(ZmqNeighboursProcesses,
                         TransportConformance,
                         testing::Values(TransportUnderTest{
                             "tcp and memory, a process per rank", {}, joined_mixed}));

}  // namespace
}  // namespace millrace
