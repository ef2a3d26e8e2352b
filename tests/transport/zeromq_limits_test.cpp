// What an endpoint over ZeroMQ refuses by itself: peers without a key of the job, already in the
// hand-shake, and a known rank that sends more than was agreed.
#include <filesystem>

#include <gmock/gmock.h>
#include <zmq.hpp>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/conformance.hpp"
#include "transport/zeromq/address.hpp"

namespace millrace {
namespace {

using testing_transport::soon;

/// Reports how the library's handshake ended.
class HandShakeWatch final : public zmq::monitor_t {
 public:
  /// ZMQ_EVENT_HANDSHAKE_...; 0 when none ended within five seconds.
  int outcome(zmq::socket_t& socket, const std::string& address) {
    init(socket,
         "inproc://hand-shake",
         ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
             ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL);
    socket.connect(address);
    check_event(5000);
    return event_;
  }

 private:
  void on_event_handshake_succeeded(const zmq_event_t& event, const char* /*address*/) override {
    event_ = event.event;
  }
  void on_event_handshake_failed_auth(const zmq_event_t& event, const char* /*address*/) override {
    event_ = event.event;
  }

  int event_ = 0;
};

int shake_hands(const std::string& address,
                const std::string& name,
                const CurveKeys& own,
                const std::string& server_key) {
  zmq::context_t outside(1);
  zmq::socket_t socket(outside, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::routing_id, name);
  socket.set(zmq::sockopt::curve_serverkey, server_key);
  socket.set(zmq::sockopt::curve_publickey, own.public_key);
  socket.set(zmq::sockopt::curve_secretkey, own.secret_key.text());
  return HandShakeWatch().outcome(socket, address);
}

TEST(ZeroMqZapHandler, UnknownKey_IsRejected) {
  const std::vector<CurveKeys> keys = {make_curve_keys(), make_curve_keys()};
  ZeroMqOptions options;
  options.rank = Rank{1};
  options.world = 2;
  options.link = ZeroMqLink::Tcp;
  options.keys = {keys[1], {keys[0].public_key, keys[1].public_key}};
  const ZeroMqListener listener(options, std::make_shared<ZeroMqContext>());
  const std::string& server_key = keys[1].public_key;

  const zeromq::SocketAddresses sockets = zeromq::socket_addresses(listener.address());
  for (const std::string& address : {sockets.data, sockets.control}) {
    for (const char* name : {"r0", "r1", "x"})
      EXPECT_EQ(shake_hands(address, name, make_curve_keys(), server_key),
                ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
          << name;
    EXPECT_EQ(shake_hands(address, "r0", keys[0], server_key), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
  }
}

TEST(ZeroMqDepth, Receiver_EnforcesTheDepth) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const auto context = std::make_shared<ZeroMqContext>();
  ZeroMqOptions options;
  options.world = 2;
  options.directory = directory.path();
  ZeroMqListener sender_listener(options, context);
  options.rank = Rank{1};
  options.depths = {{Rank{0}, Rank{1}, Direction::Forward, 1}};
  ZeroMqListener receiver_listener(options, context);
  const std::vector<PeerAddress> addresses = {sender_listener.address(),
                                              receiver_listener.address()};
  const auto sender = sender_listener.open(addresses);
  const auto receiver = receiver_listener.open(addresses);

  MessageTag tag;
  for (; tag.step < 2; ++tag.step)
    sender->send(Rank{1}, tag, TensorList(testing_transport::filled(DType::U8, {1}, 0)));

  try {
    (void)receiver->receive(Rank{0}, tag, soon());
    FAIL() << "two messages where one fits";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("more than the channel to rank 1 holds"));
  }
}

}  // namespace
}  // namespace millrace
