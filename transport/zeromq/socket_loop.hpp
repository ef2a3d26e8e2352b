// A rank's sockets and whose turn it is with them. It listens on two (data, control) and dials one
// to every peer that it watches or answers (control), and one to those that it has tensors for
// (data). The rank's own
// thread sends and, while it waits, receives; a progress thread takes a short turn whenever the
// rank is busy elsewhere. One lock, handed from thread to thread, is what the network library asks
// of sockets that move.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include <zmq.hpp>

#include "millrace/core/tensor_pool.hpp"
#include "transport/liveness/heartbeat_interval.hpp"
#include "transport/liveness/watch.hpp"
#include "transport/mailbox/mailbox.hpp"
#include "transport/shared_memory/region.hpp"
#include "transport/wire/control.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/context.hpp"
#include "transport/zeromq/line.hpp"
#include "transport/zeromq/link.hpp"
#include "transport/zeromq/sockets.hpp"

namespace millrace::zeromq {

/// How long an acknowledgement may be put off, to answer for several frames or to travel with one.
inline constexpr std::chrono::milliseconds kAckDelay{10};

/// Shorter payloads are copied: the network layer puts many of them into one block.
inline constexpr std::size_t kInPlaceBytes = std::size_t{64} << 10U;

/// A fresh block of the network layer begins 8 bytes short of a boundary.
inline constexpr int kFirstLead = 8;

/// Of what ends an epoch; the rest is cut.
inline constexpr std::size_t kLongestText = 4000;

/// A message to send; `hashes` has one number per tensor, or is empty.
struct Outgoing {
  Rank to;
  MessageTag tag;
  TensorList tensors;
  std::vector<std::uint64_t> hashes;
};

/// Ask `to` how much it has taken.
struct Question {
  Rank to;
  std::uint64_t number = 0;
};

/// Report to `to` how much was taken.
struct Credit {
  Rank to;
};

/// Leave when everything has arrived.
struct Leave {};

using Command = std::variant<Outgoing, Question, Credit, Failure, Leave>;

/// The listening sockets of a rank and the room they belong to.
struct Listeners {
  std::shared_ptr<ZeroMqContext> context;
  zmq::socket_t data;
  zmq::socket_t control;
  std::array<SocketFile, 2> files;
};

/// Thread-safety: `post` from any thread; everything else from the rank's thread.
class SocketLoop {
 public:
  /// `mailbox` and `slot` must outlive this.
  SocketLoop(const ZeroMqOptions& options,
             Listeners listeners,
             const std::vector<SocketAddresses>& addresses,
             Mailbox& mailbox,
             const ProgressSlot& slot);
  SocketLoop(const SocketLoop&) = delete;
  SocketLoop& operator=(const SocketLoop&) = delete;
  ~SocketLoop();

  /// Takes a turn and does it at once. What goes wrong becomes the mailbox's failure.
  void now(Command command) noexcept;

  /// Has it done in the next turn of any thread.
  void post(Command command) noexcept;

  /// Takes turns, in which messages arrive and time passes, until `done()` or the deadline. `done`
  /// is asked before every turn and inside it; what it throws is passed on. Returns its answer.
  template <class Done>
  bool wait(Deadline deadline, const Done& done) {
    if (done()) return true;
    const Attendance attendance(*this);
    for (;;) {
      if (done()) return true;
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero()) return false;
      const std::lock_guard lock(turn_);
      if (done()) return true;  // the other thread's turn brought it
      take_turn(std::min(longest_rest(), std::chrono::ceil<std::chrono::milliseconds>(left)));
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// As long as the rank itself takes turns, the progress thread may sleep.
  class Attendance {
   public:
    explicit Attendance(SocketLoop& loop) : loop_(loop) { loop_.attended_ = true; }
    Attendance(const Attendance&) = delete;
    Attendance& operator=(const Attendance&) = delete;
    ~Attendance() { loop_.depart(); }

   private:
    SocketLoop& loop_;
  };

  struct Peer {
    Rank rank;
    SocketAddresses address;
    std::unique_ptr<Line> control;  // in its turn, or when something is to be said
    std::unique_ptr<Line> data;     // from the first tensor on
    SendLink out;
    ReceiveLink in;
    TensorList assembling;
    int lead = kFirstLead;         // of tensors to it
    int wished_lead = kFirstLead;  // of tensors from it
    int unacknowledged = 0;        // frames taken since the last acknowledgement
    std::uint64_t unacknowledged_bytes = 0;
    Clock::time_point tell_at = Clock::time_point::max();  // unless a frame goes there before
    std::uint64_t question = 0;                            // ours, until answered
    std::uint64_t answered = 0;                            // ours, answered
    std::uint64_t peers_question = 0;  // theirs, echoed in every acknowledgement
    std::int32_t obeyed = 0;           // their last request to repeat frames
    Clock::time_point next_probe;
    Clock::duration probe_interval{};
    bool left = false;
    bool bye_acknowledged = false;
  };

  /// What a listening socket gives: identity, header, payload, and how many parts there were.
  struct Arrival {
    zmq::message_t identity;
    zmq::message_t header;
    zmq::message_t payload;
    int parts = 0;
  };

  // socket_loop.cpp: life and loop
  void add_peer(Rank rank, const SocketAddresses& address);
  std::unique_ptr<Line> dial(Rank rank, int linger_ms, const std::string& address);
  zmq::socket_t& data_to(Peer& peer);
  zmq::socket_t& control_to(Peer& peer);
  void dial_next();
  bool knows(const Peer& peer) const;
  void run() noexcept;
  void sleep_while_attended();
  void depart() noexcept;
  void wake() const noexcept;
  template <class Body>
  void guarded(const Body& body) noexcept;
  void take_turn(std::chrono::milliseconds longest) noexcept;
  void poll_once(std::chrono::milliseconds longest);
  void acknowledge(Clock::time_point now);
  bool rests(Clock::time_point now) const;
  std::chrono::milliseconds longest_rest() const;
  void take_commands();
  void handle(Outgoing& message);
  void handle(const Question& question);
  void handle(const Credit& credit);
  void handle(const Failure& failure);
  void handle(const Leave& leave);

  // socket_loop_frames.cpp: frames in and out
  static bool read(zmq::socket_t& socket, Arrival& arrival);
  Peer* sender_of(Arrival& arrival);
  bool read_data();     // true when more may be there
  bool read_control();  // true when more may be there
  void take_data(Peer& peer, Arrival& arrival);
  Tensor tensor_of(Peer& peer, const DataHeader& header, zmq::message_t& part);
  void heed(Peer& peer, const Control& control);
  void obey(Peer& peer, const Ack& ack);
  void obey(Peer& peer, const Nack& nack);
  void obey(Peer& peer, const Progress& progress);
  void obey(Peer& peer, const Abort& abort);
  void obey(Peer& peer, const Bye& bye);
  void obey(Peer& peer, const ByeAck& ack);
  void transmit(Peer& peer, RetainedFrame& frame);
  void probe(Peer& peer);
  void ask_again(Peer& peer);
  void learn(Peer& peer, const Envelope& envelope);
  void say(Peer& peer, const Control& control);
  void acknowledge(Peer& peer);
  Envelope envelope_to(Peer& peer);

  // socket_loop_watch.cpp: time passes
  void look_at_lines(Clock::time_point now);
  void tick(Clock::time_point now);
  void beat(Clock::time_point now);
  std::optional<Rank> cut_off(Clock::time_point now) const;
  std::optional<Watch::News> news_of(Rank rank, Clock::time_point now) const;
  std::optional<Failure> judge(Clock::time_point now);
  void leave_when_settled(Clock::time_point now);
  void fail(FailureCause cause, const std::string& text);
  void fail(const Failure& failure) { fail(failure.cause, failure.text); }
  void shout(const Failure& failure);

  const ZeroMqOptions options_;
  Mailbox& mailbox_;
  const ProgressSlot& slot_;
  Listeners listeners_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null at our own
  TensorPool pool_;                           // of received tensors
  const HeartbeatInterval heartbeat_interval_;
  Watch watch_;
  LivenessMonitor& monitor_ = watch_.monitor();
  std::vector<Line*> lines_;  // as in polled_, from kLines on; where they lie in peers_
  const std::vector<Rank> watched_;
  std::size_t next_dialled_ = 0;  // of watched_
  int dialling_ = 0;              // connections that have not been up yet
  Clock::duration slowest_{};     // of the first hand-shakes
  Clock::time_point last_tick_;
  Clock::time_point next_beat_;
  std::size_t next_heartbeat_ = 0;  // of peers_, by the next beat
  Clock::time_point next_look_;     // at the events of connections, and at who is silent or hangs
  Clock::time_point next_bye_;
  Clock::duration bye_interval_{};
  std::optional<Failure> stopped_;  // sent to every rank again and again
  bool leaving_ = false;
  std::uint64_t unknown_peers_ = 0;

  static constexpr std::size_t kLines = 3;
  std::vector<pollfd> polled_;      // where something comes in: data, control, wake_, then lines
  shared_memory::Descriptor wake_;  // eventfd
  std::mutex turn_;                 // guards everything above; locked before mutex_
  std::mutex mutex_;                // guards commands_
  std::vector<Command> commands_;
  std::atomic<bool> end_{false};
  // Sequentially consistent: of one who leaves and one who lies down at once, one sees the other.
  std::atomic<bool> attended_{false};
  std::atomic<bool> asleep_{false};
  std::jthread thread_;
};

}  // namespace millrace::zeromq
