// Strangers at the door: without the key, with a wrong one, with a stolen name, with garbage. No
// byte of a tensor goes out, no frame comes in, and training continues.
#include <filesystem>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <zmq.hpp>

#include "millrace/core/random.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/private_directory.hpp"
#include "transport/repetitions.hpp"
#include "transport/three_ranks.hpp"
#include "transport/wire/frame.hpp"
#include "transport/zeromq/address.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using namespace testing_transport;

/// Sends to a listener as `identity`, with the client keys given, and returns what it was
/// answered.
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
    socket.set(zmq::sockopt::curve_secretkey, own.secret_key.text());
  }
  socket.connect(address);
  DataHeader header;
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

TEST(ZeroMqStrangers, MissingOrWrongKey_IsRejected) {
  const auto context = std::make_shared<ZeroMqContext>();
  std::vector<CurveKeys> keys;
  std::vector<std::string> public_keys;
  for (int i = 0; i < kRanks; ++i) {
    keys.push_back(make_curve_keys());
    public_keys.push_back(keys.back().public_key);
  }
  std::vector<std::unique_ptr<ZeroMqListener>> listeners;
  std::vector<PeerAddress> addresses;
  for (int i = 0; i < kRanks; ++i) {
    ZeroMqOptions options;
    options.rank = Rank{i};
    options.world = kRanks;
    options.link = ZeroMqLink::Tcp;
    options.job = 9;
    options.keys = {keys[static_cast<std::size_t>(i)], public_keys};
    listeners.push_back(std::make_unique<ZeroMqListener>(options, context));
    addresses.push_back(listeners.back()->address());
  }

  // Before the honest ranks connect, so that the names are still free.
  zmq::context_t outside(1);
  const std::string listener = zeromq::socket_addresses(addresses[1]).data;
  Endpoints ends;
  ends.push_back(listeners[1]->open(addresses));
  knock(outside, listener, "r0", {}, "");                             // no key
  knock(outside, listener, "r0", make_curve_keys(), public_keys[1]);  // an unknown key
  knock(outside, listener, "r0", keys[2], public_keys[1]);            // rank 2 as rank 0
  knock(outside, listener, "x", keys[2], public_keys[1]);             // a name of no rank
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
    end.leave(soon());
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
      ProcessGroup together(end, kSoon);
      together.begin_step((std::uint64_t{1} << 40U) + step);
      together.all_reduce(std::span<double>(&last, 1), ReduceOp::Max, Label::Values);
      if (last != 0) break;
    }
    end.leave(soon());
  });
}

TEST(ZeroMqListener, UnsafeAddresses_AreRejected) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const auto context = std::make_shared<ZeroMqContext>();
  ZeroMqOptions options = quick(directory);
  const ZeroMqListener first(options, context);
  EXPECT_THROW(ZeroMqListener(options, context), TransportError);

  options.rank = Rank{1};
  std::filesystem::permissions(
      directory.path(), std::filesystem::perms::owner_all | std::filesystem::perms::group_all);
  EXPECT_THROW(ZeroMqListener(options, context), TransportError);
  options.link = ZeroMqLink::Tcp;
  EXPECT_THROW(ZeroMqListener(options, context), TransportError);
  options.directory.clear();
  EXPECT_THROW(ZeroMqListener(options, context), InvalidArgument);
}

}  // namespace
}  // namespace millrace
