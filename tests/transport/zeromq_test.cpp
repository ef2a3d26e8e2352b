// ZeroMQ endpoints: the conformance suite over ipc and over tcp with CURVE, between threads and
// between processes, and whose memory received tensors lie in.
#include "millrace/transport/zeromq.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <thread>

#include <gmock/gmock.h>

#include "millrace/core/tensor_pool.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "support/free_address.hpp"
#include "transport/conformance.hpp"
#include "transport/meeting_conformance.hpp"

namespace millrace {
namespace {

using testing_transport::Endpoints;
using testing_transport::MeetingConformance;
using testing_transport::soon;
using testing_transport::TransportConformance;
using testing_transport::TransportUnderTest;

/// Endpoints over ipc need their directory as long as they live.
class InDirectory final : public Endpoint {
 public:
  InDirectory(std::shared_ptr<PrivateDirectory> directory, std::unique_ptr<Endpoint> inside)
      : directory_(std::move(directory)), inside_(std::move(inside)) {}

  [[nodiscard]] Rank rank() const override { return inside_->rank(); }
  [[nodiscard]] int world() const override { return inside_->world(); }
  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    inside_->send(to, tag, std::move(payload));
  }
  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    return inside_->receive(from, tag, deadline);
  }
  void cancel(const std::string& reason) noexcept override { inside_->cancel(reason); }
  void leave(Deadline deadline) override { inside_->leave(deadline); }

 private:
  std::shared_ptr<PrivateDirectory> directory_;
  std::unique_ptr<Endpoint> inside_;
};

Endpoints over_ipc(int world, const std::vector<ChannelDepth>& depths) {
  auto directory = std::make_shared<PrivateDirectory>(std::filesystem::temp_directory_path());
  ZeroMqOptions options;
  options.world = world;
  options.directory = directory->path();
  options.depths = depths;
  Endpoints endpoints;
  for (auto& end : zeromq_mesh(options))
    endpoints.push_back(std::make_unique<InDirectory>(directory, std::move(end)));
  return endpoints;
}

Endpoints over_tcp(int world, const std::vector<ChannelDepth>& depths) {
  ZeroMqOptions options;
  options.world = world;
  options.link = ZeroMqLink::Tcp;
  options.depths = depths;
  return zeromq_mesh(options);
}

/// This process as one rank: over ipc or tcp, met in the directory that all of them share.
std::unique_ptr<Endpoint> joined(ZeroMqLink link,
                                 Rank rank,
                                 int world,
                                 const std::vector<ChannelDepth>& depths,
                                 const std::string& directory,
                                 std::uint32_t number) {
  ZeroMqOptions options;
  options.rank = rank;
  options.world = world;
  options.link = link;
  options.insecure = link == ZeroMqLink::Tcp;
  options.directory = directory;
  options.depths = depths;
  options.epoch = number;
  return meet({.url = "ipc://" + directory + "/rendezvous-" + std::to_string(number)},
              ZeroMqListener(options, std::make_shared<ZeroMqContext>()));
}

TransportUnderTest in_processes(const std::string& name, ZeroMqLink link) {
  using namespace std::placeholders;
  return {name, {}, std::bind(joined, link, _1, _2, _3, _4, _5)};
}

testing_transport::Gathering listening(ZeroMqLink link, int world, const std::string& directory) {
  const auto context = std::make_shared<ZeroMqContext>();
  const bool ipc = link == ZeroMqLink::Ipc;
  testing_transport::Gathering all{
      {}, ipc ? "ipc://" + directory + "/rendezvous" : test::free_address()};
  ZeroMqOptions options;
  options.world = world;
  options.link = link;
  options.insecure = !ipc;
  if (ipc) options.directory = directory;
  for (int i = 0; i < world; ++i) {
    options.rank = Rank{i};
    all.listeners.push_back(std::make_unique<ZeroMqListener>(options, context));
  }
  return all;
}

testing_transport::ListenersUnderTest listeners(const std::string& name, ZeroMqLink link) {
  using namespace std::placeholders;
  return {name, std::bind(listening, link, _1, _2)};
}

/// Sends tensors of `bytes` bytes, of which the receiver holds some and answers each, as stages do;
/// how many came in place.
int sent_in_place(Endpoint& from, Endpoint& to, std::int64_t bytes, int count) {
  TensorPool pool;
  std::deque<Tensor> held;
  int in_place = 0;
  for (int i = 0; i < count; ++i) {
    MessageTag tag;
    tag.step = static_cast<std::uint64_t>(bytes);
    tag.micro_batch = MicroBatch{i};
    Tensor sent = pool.make(DType::U8, {bytes});
    std::memset(sent.data(), i, sent.bytes());
    from.send(to.rank(), tag, TensorList(std::move(sent)));
    TensorList list = to.receive(from.rank(), tag, soon());
    const auto seen = list[0].as<std::uint8_t>();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(seen.data()) % kAlignment, 0U);
    EXPECT_TRUE(std::all_of(
        seen.begin(), seen.end(), [&](auto byte) { return byte == static_cast<std::uint8_t>(i); }));
    to.send(from.rank(), tag, TensorList(Tensor(DType::U8, {1})));
    static_cast<void>(from.receive(to.rank(), tag, soon()));
    in_place += list[0].margins() == Margins::None ? 1 : 0;
    held.push_back(std::move(list[0]));
    if (held.size() > 5) held.pop_front();
  }
  return in_place;
}

TEST(ZeroMqMemory, LargeTensors_AreUsedWhereTheyArrive) {
  for (const auto& connect : {over_ipc, over_tcp}) {
    const Endpoints ends = connect(2, {});
    int in_place = 0;
    for (const std::int64_t bytes : {1 << 17, 1 << 20, (1 << 20) + 36})
      in_place += sent_in_place(*ends[0], *ends[1], bytes, 40);
    EXPECT_GE(in_place, 10);  // where blocks lie is the allocator's choice
    EXPECT_EQ(sent_in_place(*ends[0], *ends[1], 4096, 40), 0);
  }
}

TEST(ZeroMqMemory, ATensorOutlivesTheEndpointItCameFrom) {
  Endpoints ends = over_ipc(2, {});
  Tensor first(DType::U8, {1 << 20});
  std::memset(first.data(), 3, first.bytes());
  ends[0]->send(Rank{1}, {}, TensorList(std::move(first)));
  const TensorList received = ends[1]->receive(Rank{0}, {}, soon());
  ends.clear();

  for (const auto byte : received[0].as<std::uint8_t>()) ASSERT_EQ(byte, 3);
}

INSTANTIATE_TEST_SUITE_P(ZmqIpc,
                         TransportConformance,
                         testing::Values(TransportUnderTest{"zmq-ipc", over_ipc}));
INSTANTIATE_TEST_SUITE_P(ZmqTcpCurve,
                         TransportConformance,
                         testing::Values(TransportUnderTest{"zmq-tcp", over_tcp}));
INSTANTIATE_TEST_SUITE_P(Zmq,
                         MeetingConformance,
                         testing::Values(listeners("zmq-ipc", ZeroMqLink::Ipc),
                                         listeners("zmq-tcp", ZeroMqLink::Tcp)));
INSTANTIATE_TEST_SUITE_P(
    ZmqProcesses,
    TransportConformance,
    testing::Values(in_processes("zmq-ipc, a process per rank", ZeroMqLink::Ipc),
                    in_processes("zmq-tcp, a process per rank", ZeroMqLink::Tcp)));

}  // namespace
}  // namespace millrace
