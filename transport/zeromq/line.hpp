// A connection that this rank dials, and what becomes of it. One that never was is not one that
// ended: where many ranks meet on few cores, hand-shakes take seconds.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <zmq.hpp>

#include "millrace/transport/zeromq.hpp"

namespace millrace::zeromq {

/// Judges the network library's events. No sockets, no clock of its own.
/// Thread-safety: externally synchronised.
class ConnectionMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ConnectionMonitor(Clock::time_point dialled) : dialled_(dialled) {}

  /// A process listens there; the handshake begins.
  void connected();
  void shaken(Clock::time_point now);
  void ended(Clock::time_point now);
  /// Another attempt will be made: after an end as a matter of course, else because no process
  /// listens.
  void retried(Clock::time_point now);

  [[nodiscard]] bool up() const { return up_; }

  /// From dialling to the end of the first hand-shake; zero before.
  [[nodiscard]] Clock::duration took() const { return took_; }

  /// Where no process listens any more for `grace`, or what had been up has not come back for
  /// `timeout`, the other side is gone.
  [[nodiscard]] bool lost(Clock::time_point now,
                          Clock::duration grace,
                          Clock::duration timeout) const;

 private:
  Clock::time_point dialled_;
  Clock::duration took_{};
  bool up_ = false;
  bool was_up_ = false;
  bool just_ended_ = false;
  bool refused_ = false;
  std::optional<Clock::time_point> down_since_;
};

/// The sockets of one connection: a dialler and the monitor of its events.
struct Line {
  Rank to;
  zmq::socket_t socket;
  zmq::socket_t monitor;
  ConnectionMonitor watch;

  /// Dials `peer` at `address`; see make_dialer. Throws TransportError.
  Line(zmq::context_t& context,
       const ZeroMqOptions& options,
       Rank peer,
       int linger_ms,
       const std::string& address);
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  /// The network library's own thread writes events and would wait for ever for a reader that is
  /// gone: no more of them before the reader goes.
  ~Line();

  /// Takes in what happened. False when the other side does not accept our key.
  [[nodiscard]] bool look(ConnectionMonitor::Clock::time_point now);
};

}  // namespace millrace::zeromq
