#include "transport/zeromq/line.hpp"

#include <cstdint>
#include <cstring>

#include "transport/zeromq/sockets.hpp"

namespace millrace::zeromq {

namespace {

constexpr int kMonitored = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED |
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_CONNECT_RETRIED |
                           ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

}  // namespace

void ConnectionMonitor::connected() {
  refused_ = just_ended_ = false;
  if (!was_up_) down_since_.reset();
}

void ConnectionMonitor::shaken(Clock::time_point now) {
  if (!was_up_) took_ = now - dialled_;
  up_ = was_up_ = true;
  refused_ = just_ended_ = false;
  down_since_.reset();
}

void ConnectionMonitor::ended(Clock::time_point now) {
  up_ = false;
  just_ended_ = true;
  if (was_up_ && !down_since_) down_since_ = now;
}

void ConnectionMonitor::retried(Clock::time_point now) {
  if (just_ended_) {
    just_ended_ = false;
    return;
  }
  up_ = false;
  refused_ = true;
  if (!down_since_) down_since_ = now;
}

bool ConnectionMonitor::lost(Clock::time_point now,
                             Clock::duration grace,
                             Clock::duration timeout) const {
  return down_since_ && now - *down_since_ > (refused_ ? grace : timeout);
}

Line::Line(zmq::context_t& context,
           const ZeroMqOptions& options,
           Rank peer,
           int linger_ms,
           const std::string& address)
    : to(peer),
      socket(make_dialer(context, options, peer, linger_ms)),
      monitor(context, ZMQ_PAIR),
      watch(ConnectionMonitor::Clock::now()) {
  // Before the connection, whose events it reports.
  const std::string name =
      "inproc://monitor-" + std::to_string(reinterpret_cast<std::uintptr_t>(socket.handle()));
  if (zmq_socket_monitor(socket.handle(), name.c_str(), kMonitored) != 0)
    throw TransportError("cannot watch the connection to rank " + std::to_string(peer.value));
  monitor.set(zmq::sockopt::linger, 0);
  monitor.connect(name);
  static_cast<void>(look(ConnectionMonitor::Clock::now()));  // its descriptor becomes readable only
                                                             // for who has looked before
  connect(socket, peer, address);
}

Line::~Line() {
  zmq_socket_monitor(socket.handle(), nullptr, 0);
  socket.close();
  monitor.close();
}

bool Line::look(ConnectionMonitor::Clock::time_point now) {
  zmq::message_t event;
  zmq::message_t address;
  bool accepted = true;
  while (receive_part(monitor, event)) {
    if (event.more()) receive_part(monitor, address);
    std::uint16_t number = 0;
    if (event.size() < sizeof number) continue;
    std::memcpy(&number, event.data(), sizeof number);
    if (number == ZMQ_EVENT_CONNECTED) watch.connected();
    if (number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) watch.shaken(now);
    if (number == ZMQ_EVENT_DISCONNECTED) watch.ended(now);
    if (number == ZMQ_EVENT_CONNECT_RETRIED) watch.retried(now);
    accepted = accepted && number != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  }
  return accepted;
}

}  // namespace millrace::zeromq
