// A rank's messages over MPI and whose turn it is with them: the rank's own thread sends and, while
// it waits, receives; a progress thread takes a short turn whenever the rank is busy elsewhere, so
// that MPI moves what was sent, and heartbeats, credit and the watch go on. MPI loses nothing and
// keeps the order, so nothing is acknowledged or sent again.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "millrace/core/tensor_pool.hpp"
#include "millrace/transport/mpi.hpp"
#include "transport/liveness/heartbeat_interval.hpp"
#include "transport/liveness/watch.hpp"
#include "transport/mailbox/mailbox.hpp"
#include "transport/mpi/pause.hpp"
#include "transport/mpi/world.hpp"
#include "transport/wire/control.hpp"
#include "transport/wire/frame.hpp"

namespace millrace::mpi {

/// Below 4 KiB every MPI hands a message over without asking the receiver, so that a receive of one
/// that has come never waits for its sender.
inline constexpr std::size_t kLargestFrame = 3840;

/// Of what ends an epoch; the rest is cut.
inline constexpr std::size_t kLongestText = kLargestFrame - kHeaderBytes;

/// Larger payloads are messages of their own, received where they stay.
[[nodiscard]] constexpr bool travels_apart(std::uint64_t payload_bytes) {
  return payload_bytes > 2048;
}

/// Thread-safety: `stop` from any thread; everything else from the rank's thread.
class MessageLoop {
 public:
  /// `mailbox` and `slot` must outlive this.
  MessageLoop(const MpiOptions& options, Mailbox& mailbox, const ProgressSlot& slot);
  MessageLoop(const MessageLoop&) = delete;
  MessageLoop& operator=(const MessageLoop&) = delete;
  /// Without `leave`, the others learn that this rank is lost.
  ~MessageLoop();

  /// See RankLink. Each takes a turn.
  void send(Rank to, const MessageTag& tag, TensorList tensors);
  void learn_room(Rank /*to*/) const {}
  void ask(Rank to, std::uint64_t question) noexcept;
  void acknowledge_taken(Rank from, Direction direction) noexcept;
  bool leave(Deadline deadline) noexcept;
  void stop(const Failure& failure) noexcept;
  [[nodiscard]] std::vector<SharedBytes> shared_bytes() const { return {}; }

  /// Takes turns until `done()`, which may throw, or the deadline. Returns its answer.
  template <class Done>
  bool wait(Deadline deadline, const Done& done, std::optional<Rank> /*from*/ = {}) {
    if (done()) return true;
    const Attendance attendance(attended_);
    Pause pause(deadline);
    do {
      const std::lock_guard lock(world_.turn());
      if (take_turn()) pause.begin_again();
      if (done()) return true;
    } while (pause.sleep());
    return false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// As long as the rank itself takes turns, the progress thread need not.
  class Attendance {
   public:
    explicit Attendance(std::atomic<bool>& attended) : attended_(attended) { attended_ = true; }
    Attendance(const Attendance&) = delete;
    Attendance& operator=(const Attendance&) = delete;
    ~Attendance() { attended_ = false; }

   private:
    std::atomic<bool>& attended_;
  };

  /// A frame whose payload may still be on its way.
  struct Arrival {
    std::vector<std::byte> bytes;  // header, and what came with it
    Tensor tensor;
    MPI_Request request = MPI_REQUEST_NULL;  // of the payload, where that is a message of its own
  };

  struct Peer {
    Rank rank;
    Position position;
    FrameJudge in;
    std::uint64_t sent = 0;        // frames with tensors
    std::deque<Arrival> arrivals;  // in the order in which they were sent
    TensorList assembling;
    std::uint64_t question = 0;
    bool said_bye = false;
    bool bye_acknowledged = false;
    bool left = false;
    bool watched = false;
  };

  // message_loop.cpp: life, turns and what the rank asks for
  void add_peers();
  void run() noexcept;
  void hurry();
  template <class Body>
  bool guarded(const Body& body) noexcept;
  bool take_turn() noexcept;
  void send_tensor(Peer& peer, DataHeader header, Tensor tensor);
  [[nodiscard]] int tag_to(const Peer& peer, Purpose purpose) const;
  void say(Peer& peer, const Control& control);
  [[nodiscard]] Envelope envelope_to(const Peer& peer);
  void fail(FailureCause cause, const std::string& text);
  void fail(const Failure& failure) { fail(failure.cause, failure.text); }
  void abort_all(FailureCause cause, const std::string& text);

  // message_loop_frames.cpp: what comes in
  bool read();
  bool read_from(int place);
  void take_word(Peer& peer, std::vector<std::byte> bytes);
  void begin_payload(Peer& peer, Arrival& arrival);
  bool land(Peer& peer);
  void take_data(Peer& peer, Arrival arrival);
  void take_control(Peer& peer, std::span<const std::byte> bytes);
  void obey(Peer& peer, const Probe& probe);
  void obey(Peer& peer, const Ack& ack);
  void obey(Peer& peer, const Progress& progress);
  void obey(Peer& peer, const Abort& abort);
  void obey(Peer& peer, const Bye& bye);
  void obey(Peer& peer, const ByeAck& ack);

  // message_loop.cpp: time passes
  void tick(Clock::time_point now);
  void beat(Clock::time_point now);
  void leave_when_settled();

  const MpiOptions options_;
  const Rank self_;
  Mailbox& mailbox_;
  const ProgressSlot& slot_;
  World& world_;  // its turn guards everything below
  const Position position_;
  std::deque<Peer> peers_;  // by rank; our own is not used
  TensorPool pool_;         // of received tensors
  const HeartbeatInterval heartbeat_interval_;
  Watch watch_;
  LivenessMonitor& monitor_ = watch_.monitor();
  Clock::time_point last_turn_;
  Clock::time_point next_beat_;
  Clock::time_point next_look_;
  std::size_t next_heartbeat_ = 0;  // of peers_, by the next beat
  bool stopped_ = false;
  bool leaving_ = false;
  bool settled_ = false;  // and all ranks know that we leave
  std::atomic<bool> attended_{false};
  std::mutex rest_;  // guards what follows
  std::condition_variable rested_;
  bool end_ = false;
  bool hurried_ = false;
  std::jthread thread_;
};

}  // namespace millrace::mpi
