// Faults on the way and strangers at the door: every frame of a step is lost, duplicated,
// reordered, delayed and damaged in turn, and what arrives must be what was sent.
#include <atomic>
#include <filesystem>
#include <functional>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "millrace/core/random.hpp"
#include "millrace/transport/collectives.hpp"
#include "millrace/transport/failure.hpp"
#include "millrace/transport/message.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/conformance.hpp"
#include "transport/cutting_proxy.hpp"
#include "transport/fault_proxy.hpp"
#include "transport/repetitions.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using namespace testing_transport;

constexpr int kRanks = 3;

ZeroMqOptions quick(const PrivateDirectory& directory) {
  ZeroMqOptions options;
  options.world = kRanks;
  options.directory = directory.path();
  options.job = 9;
  options.probe_after = 4ms;
  return options;
}

MessageTag tag_of(Direction direction, int stage, int micro_batch, std::uint64_t step) {
  return {step, direction, Replica{}, Stage{stage}, MicroBatch{micro_batch}, Slice{}};
}

Tensor value(int stage, int micro_batch, std::uint64_t step) {
  return filled(DType::F32, {40, 16}, static_cast<int>(step) * 100 + stage * 10 + micro_batch);
}

/// What a pipeline of three ranks does in a step: two micro-batches there and back, then a sum.
void one_step(Endpoint& end, std::uint64_t step) {
  const int self = end.rank().value;
  for (int i = 0; i < 2; ++i) {
    const auto forward = [&](int stage) { return tag_of(Direction::Forward, stage, i, step); };
    if (self > 0) {
      EXPECT_TRUE(
          same(end.receive(Rank{self - 1}, forward(self), soon())[0], value(self, i, step)));
    }
    if (self + 1 < kRanks) {
      TensorList list(value(self + 1, i, step));
      list.push_back(Tensor());
      end.send(Rank{self + 1}, forward(self + 1), std::move(list));
    }
  }
  for (int i = 0; i < 2; ++i) {
    const auto backward = [&](int stage) { return tag_of(Direction::Backward, stage, i, step); };
    if (self + 1 < kRanks) {
      EXPECT_TRUE(
          same(end.receive(Rank{self + 1}, backward(self), soon())[0], value(self, i, step)));
    }
    if (self > 0)
      end.send(Rank{self - 1}, backward(self - 1), TensorList(value(self - 1, i, step)));
  }
  Collectives together(end);
  together.begin_step(step);
  double sum = 1.0 + self;
  together.all_reduce(std::span<double>(&sum, 1), ReduceOp::Sum, soon());
  EXPECT_EQ(sum, 6.0);
}

/// Endpoints with the proxy in the middle.
class ProxiedMesh {
 public:
  explicit ProxiedMesh(const FaultPlan& plan,
                       const std::function<void(ZeroMqOptions&)>& change = {}) {
    ZeroMqOptions options = quick(directory_);
    if (change) change(options);
    const auto context = std::make_shared<ZeroMqContext>();
    std::vector<std::unique_ptr<ZeroMqDoor>> doors;
    std::vector<PeerAddress> addresses;
    for (int i = 0; i < options.world; ++i) {
      options.rank = Rank{i};
      doors.push_back(std::make_unique<ZeroMqDoor>(options, context));
      addresses.push_back(doors.back()->address());
    }
    proxy_ = std::make_unique<FaultProxy>(addresses, directory_.path(), plan);
    for (const auto& door : doors) ends.push_back(door->open(proxy_->addresses()));
  }

 private:
  PrivateDirectory directory_{std::filesystem::temp_directory_path()};
  std::unique_ptr<FaultProxy> proxy_;

 public:
  Endpoints ends;
};

void run_steps(std::uint64_t steps, const FaultPlan& plan, int attempts = 8) {
  ProxiedMesh mesh(plan, [&](ZeroMqOptions& options) { options.attempts = attempts; });
  on_every_rank(mesh.ends, [&](Endpoint& end) {
    for (std::uint64_t step = 0; step < steps; ++step) one_step(end, step);
    end.goodbye(soon());
  });
}

TEST(ZeroMqFaults, EveryFrameOfAStepMayMeetEveryFault) {
  std::uint64_t frames = 0;
  run_steps(1, [&](bool data, std::uint64_t number) {
    if (data) frames = std::max(frames, number + 1);
    return Fault::None;
  });
  ASSERT_GE(frames, 16U);  // 2 x 2 activations of two tensors, 2 x 2 gradients, 4 parts of a sum

  for (const Fault fault :
       {Fault::Lose, Fault::Duplicate, Fault::Reorder, Fault::Delay, Fault::Damage})
    for (std::uint64_t victim = 0; victim < frames; ++victim) {
      SCOPED_TRACE("fault " + std::to_string(static_cast<int>(fault)) + " of frame " +
                   std::to_string(victim));
      run_steps(1, [&](bool data, std::uint64_t number) {
        return data && number == victim ? fault : Fault::None;
      });
      ASSERT_FALSE(testing::Test::HasFailure());
    }
}

TEST(ZeroMqFaults, ManyRandomFaultsOnBothConnectionsChangeNothing) {
  // 3 of 100 frames meet a fault, acknowledgements and goodbyes too.
  run_steps(
      150,
      [](bool data, std::uint64_t number) {
        const RandomKey key{.seed = 11, .step = data ? 1U : 2U};
        if (random_below(key, static_cast<std::uint32_t>(2 * number), 100) >= 3) return Fault::None;
        return static_cast<Fault>(1 +
                                  random_below(key, static_cast<std::uint32_t>(2 * number + 1), 5));
      },
      12);
}

TEST(ZeroMqFaults, TensorsThatAreAnsweredByTensorsNeedNoControlMessages) {
  // Room for one message each way: the second is sent because the answer said that the first was
  // taken. Nothing else could say it, all control messages are lost.
  std::atomic<bool> deaf = true;
  ProxiedMesh mesh(
      [&](bool data, std::uint64_t) { return !data && deaf ? Fault::Lose : Fault::None; },
      [](ZeroMqOptions& options) {
        options.world = 2;
        options.attempts = 1000;
        options.depths = {{Rank{0}, Rank{1}, Direction::Forward, 1, true},
                          {Rank{1}, Rank{0}, Direction::Backward, 1, true}};
      });

  on_every_rank(mesh.ends, [&](Endpoint& end) {
    const Rank other{1 - end.rank().value};
    for (std::uint64_t step = 0; step < 50; ++step) {
      const MessageTag there = tag_of(Direction::Forward, 1, 0, step);
      const MessageTag back = tag_of(Direction::Backward, 0, 0, step);
      if (end.rank() == Rank{1}) (void)end.receive(other, there, soon());
      end.send(other, other == Rank{1} ? there : back, TensorList(value(0, 0, step)));
      if (other == Rank{1}) (void)end.receive(other, back, soon());
    }
    deaf = false;
    end.goodbye(soon());
  });
}

TEST(ZeroMqFaults, ACutConnectionFullOfDataLosesNothing) {
  constexpr int kMessages = 24;
  constexpr std::int64_t kBytes = 1 << 20;
  ZeroMqOptions options;
  options.world = 2;
  options.link = ZeroMqLink::Tcp;
  options.insecure = true;
  options.probe_after = 4ms;  // so that many probes wait behind the data
  const auto context = std::make_shared<ZeroMqContext>();
  ZeroMqDoor sender_door(options, context);
  options.rank = Rank{1};
  ZeroMqDoor receiver_door(options, context);
  CuttingProxy proxy(receiver_door.address().data, 20'000);
  const std::vector<PeerAddress> addresses = {sender_door.address(),
                                              {proxy.address(), receiver_door.address().control}};
  Endpoints ends;
  ends.push_back(sender_door.open(addresses));
  ends.push_back(receiver_door.open(addresses));

  on_every_rank(ends, [&](Endpoint& end) {
    MessageTag tag;
    for (; tag.step < kMessages; ++tag.step) {
      const Tensor sample = filled(DType::U8, {kBytes}, static_cast<int>(tag.step));
      if (end.rank() == Rank{0})
        end.send(Rank{1}, tag, TensorList(sample.clone()));
      else
        EXPECT_TRUE(same(end.receive(Rank{0}, tag, soon())[0], sample));
      if (end.rank() == Rank{1} && tag.step == 3) proxy.cut();
    }
    end.goodbye(soon());
  });
}

TEST(ZeroMqFaults, AFrameThatIsDamagedEveryTimeEndsTheEpochWithItsReason) {
  const ProxiedMesh mesh(
      [](bool data, std::uint64_t) { return data ? Fault::Damage : Fault::None; },
      [](ZeroMqOptions& options) { options.attempts = 3; });
  const Endpoints& ends = mesh.ends;

  ends[0]->send(Rank{1}, forward_tag(0), TensorList(value(1, 0, 0)));
  std::string message;
  try {
    (void)ends[1]->receive(Rank{0}, forward_tag(0), soon());
  } catch (const TransportError& error) {
    message = error.what();
  }

  EXPECT_EQ(message, "rank 1 refuses a frame of rank 0: payload hash");
  EXPECT_THROW((void)ends[2]->receive(Rank{0}, forward_tag(0), soon()), TransportError);
}

TEST(ZeroMqFaults, ALostPeerIsNamedWithWhatEveryRankDid) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  Endpoints ends = zeromq_mesh(quick(directory));
  std::string message;

  std::jthread waiting([&] {
    try {
      (void)ends[1]->receive(Rank{0}, forward_tag(3), soon());
    } catch (const PeerLost& error) {
      message = error.what();
    }
  });
  ends[0].reset();  // no goodbye
  waiting.join();

  EXPECT_THAT(message, testing::HasSubstr("lost rank 0: its connection ended; everyone waits"));
  EXPECT_THAT(message,
              testing::HasSubstr("rank 1 waits for activation for stage 1, micro-batch 3"));
  EXPECT_THAT(message, testing::HasSubstr("rank 2"));
}

/// Speaks to a door as `identity`, with the client keys given, and returns what it was answered.
void knock(zmq::context_t& context,
           const std::string& address,
           const std::string& identity,
           const CurveKeys& own,
           const std::string& server_key) {
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::routing_id, identity);
  if (!server_key.empty()) {
    socket.set(zmq::sockopt::curve_serverkey, server_key);
    socket.set(zmq::sockopt::curve_publickey, own.public_key);
    socket.set(zmq::sockopt::curve_secretkey, own.secret_key);
  }
  socket.connect(address);
  FrameHeader header;
  header.job = 9;
  header.source = Rank{0};
  header.destination = Rank{1};
  header.tag = forward_tag(0);
  header.tensor_count = 1;
  header.dims = Dims{4};
  header.payload_bytes = 4;
  const FrameBytes bytes = encode(header);
  for (int i = 0; i < 3; ++i) {
    socket.send(zmq::const_buffer(bytes.data(), bytes.size()), zmq::send_flags::sndmore);
    socket.send(zmq::str_buffer("evil"), zmq::send_flags::none);
  }
  zmq::message_t answer;
  socket.set(zmq::sockopt::rcvtimeo, 60);
  EXPECT_FALSE(socket.recv(answer)) << "a stranger was answered with " << answer.size() << " bytes";
}

TEST(ZeroMqStrangers, NeitherWithoutKeyNorWithAWrongOneNorWithAStolenName) {
  const auto context = std::make_shared<ZeroMqContext>();
  std::vector<CurveKeys> keys;
  std::vector<std::string> public_keys;
  for (int i = 0; i < kRanks; ++i) {
    keys.push_back(make_curve_keys());
    public_keys.push_back(keys.back().public_key);
  }
  std::vector<std::unique_ptr<ZeroMqDoor>> doors;
  std::vector<PeerAddress> addresses;
  for (int i = 0; i < kRanks; ++i) {
    ZeroMqOptions options;
    options.rank = Rank{i};
    options.world = kRanks;
    options.link = ZeroMqLink::Tcp;
    options.job = 9;
    options.keys = {keys[static_cast<std::size_t>(i)], public_keys};
    doors.push_back(std::make_unique<ZeroMqDoor>(options, context));
    addresses.push_back(doors.back()->address());
  }

  // Before the honest ranks connect, so that the names are still free.
  zmq::context_t outside(1);
  const std::string& door = addresses[1].data;
  Endpoints ends;
  ends.push_back(doors[1]->open(addresses));
  knock(outside, door, "r0", {}, "");                             // no key
  knock(outside, door, "r0", make_curve_keys(), public_keys[1]);  // a key nobody knows
  knock(outside, door, "r0", keys[2], public_keys[1]);            // rank 2 as rank 0
  knock(outside, door, "x", keys[2], public_keys[1]);             // a name of no rank
  EXPECT_THROW((void)ends[0]->receive(Rank{0}, forward_tag(0), std::chrono::steady_clock::now()),
               TransportError);
}

TEST(ZeroMqStrangers, GarbageOnEverySocketDisturbsNobody) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  Endpoints ends = zeromq_mesh(quick(directory));
  zmq::context_t outside(1);
  std::vector<zmq::socket_t> strangers;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    if (!entry.is_socket()) continue;
    auto& socket = strangers.emplace_back(outside, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    socket.connect("ipc://" + entry.path().string());
    for (std::uint32_t i = 0; i < 200; ++i)
      socket.send(zmq::message_t(std::string(random_word({.seed = 5}, i) % 300, 'x')),
                  i % 3 == 0 ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  ASSERT_EQ(strangers.size(), 6U);

  on_every_rank(ends, [&](Endpoint& end) {
    for (std::uint64_t step = 0; step < 10; ++step) one_step(end, step);
    end.goodbye(soon());
  });
}

/// Connects to a socket's path, writes what may begin like a greeting, and goes away.
void garbage_connection(const std::string& path, std::uint32_t number) {
  const int stranger = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ASSERT_GE(stranger, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
  // A full backlog refuses some: they did not get in either.
  if (::connect(stranger, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    std::string bytes(random_word({.seed = 6}, number) % 96, '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(random_word({.seed = 7}, number + static_cast<unsigned>(i)));
    const std::string greeting("\xFF\0\0\0\0\0\0\0\x01\x7F\x03\0NULL", 16);
    const std::string name_in_version_1("\x01\0", 2);
    if (number % 2 == 0) bytes = greeting.substr(0, number % 17) + bytes;
    if (number % 4 == 1) bytes = name_in_version_1 + bytes;
    static_cast<void>(!::send(stranger, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  ::close(stranger);
}

TEST(ZeroMqStrangers, GarbageConnectionsWhileRanksTrainDisturbNobody) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  Endpoints ends = zeromq_mesh(quick(directory));
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    if (entry.is_socket()) paths.push_back(entry.path());
  const auto count = static_cast<std::uint32_t>(testing_transport::times(10'000));
  std::atomic<bool> over = false;
  std::jthread strangers([&] {
    for (std::uint32_t i = 0; i < count; ++i) garbage_connection(paths[i % paths.size()], i);
    over = true;
  });

  on_every_rank(ends, [&](Endpoint& end) {
    // Rank 0 says whether the step that begins is the last.
    for (std::uint64_t step = 0;; ++step) {
      one_step(end, step);
      double last = end.rank() == Rank{0} && over ? 1 : 0;
      Collectives together(end);
      together.begin_step((std::uint64_t{1} << 40U) + step);
      together.all_reduce(std::span<double>(&last, 1), ReduceOp::Max, soon());
      if (last != 0) break;
    }
    end.goodbye(soon());
  });
}

TEST(ZeroMqDoor, RefusesASquattedPathADirectoryForAllAndTcpWithoutKeys) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const auto context = std::make_shared<ZeroMqContext>();
  ZeroMqOptions options = quick(directory);
  const ZeroMqDoor first(options, context);
  EXPECT_THROW(ZeroMqDoor(options, context), TransportError);

  options.rank = Rank{1};
  std::filesystem::permissions(
      directory.path(), std::filesystem::perms::owner_all | std::filesystem::perms::group_all);
  EXPECT_THROW(ZeroMqDoor(options, context), TransportError);
  options.link = ZeroMqLink::Tcp;
  EXPECT_THROW(ZeroMqDoor(options, context), TransportError);
  options.directory.clear();
  EXPECT_THROW(ZeroMqDoor(options, context), InvalidArgument);
}

}  // namespace
}  // namespace millrace
