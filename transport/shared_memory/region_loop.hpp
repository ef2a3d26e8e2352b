// A rank's memory, that of the others, and whose turn it is with it. The rank's own thread takes
// the turn to send and, while it waits, to receive; a progress thread takes one ten times a second
// while the rank computes, so that others see that it lives and take what waited for room. No rank
// waits for another: what has no room is kept until there is some.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "millrace/core/tensor_pool.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "transport/liveness/watch.hpp"
#include "transport/mailbox/mailbox.hpp"
#include "transport/shared_memory/descriptor_message.hpp"
#include "transport/shared_memory/events.hpp"
#include "transport/shared_memory/region.hpp"
#include "transport/shared_memory/ring.hpp"
#include "transport/shared_memory/send_queue.hpp"
#include "transport/shared_memory/slots.hpp"
#include "transport/wire/frame.hpp"

namespace millrace::shared_memory {

/// The socket at which others introduce themselves; its file goes with it.
class ListeningSocket {
 public:
  ListeningSocket() = default;
  ListeningSocket(std::string path, int backlog);
  ListeningSocket(ListeningSocket&& other) noexcept = default;
  ListeningSocket& operator=(ListeningSocket&& other) noexcept;
  ~ListeningSocket();

  [[nodiscard]] int number() const { return socket_.number(); }

 private:
  std::string path_;
  Descriptor socket_;
};

/// Memory of one rank's own making, and the structure in it.
template <class Content>
struct Own {
  Descriptor file;
  Mapping memory;
  Content* content = nullptr;
};

struct OwnSendQueue;

/// What a tensor in a sender's memory needs to return it.
struct Loan {
  std::shared_ptr<Mapping> segment;
  std::shared_ptr<OwnSendQueue> send_queue;
  Place place;
};

/// Keeps returned loans for the next ones. Thread-safety: internally synchronised, any thread.
class SpareLoans {
 public:
  std::unique_ptr<Loan> take() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) {
      spare_.reserve(++made_);  // so that put never allocates
      return std::make_unique<Loan>();
    }
    auto loan = std::move(spare_.back());
    spare_.pop_back();
    return loan;
  }
  void put(std::unique_ptr<Loan> loan) noexcept {
    const std::lock_guard lock(mutex_);
    spare_.push_back(std::move(loan));
  }

 private:
  std::mutex mutex_;  // guards the rest; taken alone
  std::vector<std::unique_ptr<Loan>> spare_;
  std::size_t made_ = 0;
};

/// Our send_queue for one other, which lives as long as tensors that are returned through it.
struct OwnSendQueue : Own<SendQueue> {
  SpareLoans loans;                    ///< of tensors of the other's
  std::atomic<std::uint32_t> held{0};  ///< slots of the other's that tensors lie in
};

/// The same of another's, for reading.
template <class Content>
struct Foreign {
  Mapping memory;
  const Content* content = nullptr;
};

/// Where something else connects all ranks, memory carries messages between some of them, and says
/// nothing else: who lives, who has left and what ends the epoch is said there.
struct Carrying {
  std::vector<Rank> between;  ///< and ourselves
  /// Both inside of a turn: the mailbox has failed; one more of them is heard.
  std::function<void(FailureCause, const std::string&)> failed;
  std::function<void()> introduced;
};

/// Thread-safety: `stop` and `wake_up` from any thread; everything else from the rank's thread.
class RegionLoop {
 public:
  /// `mailbox` and `slot` must outlive this. `sockets` by rank.
  RegionLoop(const SharedMemoryOptions& options,
             Mailbox& mailbox,
             const ProgressSlot& slot,
             ListeningSocket socket,
             std::vector<std::string> sockets,
             std::optional<Carrying> carrying = {});
  RegionLoop(const RegionLoop&) = delete;
  RegionLoop& operator=(const RegionLoop&) = delete;
  ~RegionLoop();

  /// See RankLink. What a receiver has taken is read by `learn_room`, so that `ask` need not ask.
  void send(Rank to, const MessageTag& tag, TensorList payload) noexcept;
  void learn_room(Rank to) noexcept;
  void ask(Rank to, std::uint64_t question) { mailbox_.answer(to, question); }
  /// `from` is introduced.
  void acknowledge_taken(Rank from, Direction direction) noexcept;
  bool leave(Deadline deadline) noexcept;
  void stop(const Failure& failure) noexcept;

  /// Ends the rest of who waits.
  void wake_up() const noexcept { wake(bell_.number()); }

  /// For Carrying: the ranks that were reached; whether we receive from a rank, which begins with
  /// its introduction; whether it receives, which it does only where we receive from it; how many
  /// were introduced; and whether all that was sent has been read, for `wait` after `leave`.
  [[nodiscard]] std::vector<Rank> reached();
  [[nodiscard]] bool receives_from(Rank from) noexcept;
  [[nodiscard]] bool carries_to(Rank to) noexcept;
  [[nodiscard]] int introductions() const { return introductions_; }
  [[nodiscard]] bool settled() const { return settled_; }

  /// See Endpoint.
  [[nodiscard]] std::vector<SharedBytes> shared_bytes() const;

  /// Takes turns, in which messages arrive and time passes, until `done()` or the deadline. What
  /// `done` throws is passed on. Returns its answer.
  template <class Done>
  bool wait(Deadline deadline, const Done& done, std::optional<Rank> /*from*/ = {}) {
    for (;;) {
      const std::lock_guard lock(turn_);
      take_turn();
      if (done()) return true;
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero()) return false;
      rest(left);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Waiting {
    DataHeader header;
    Tensor tensor;
  };

  /// Another rank. First half: what we give it; second: what it gave us.
  struct Neighbour {
    Neighbour(Rank number, std::string path) : rank(number), socket_path(std::move(path)) {}

    const Rank rank;
    const std::string socket_path;
    std::string progress_file;
    Descriptor to;  // from dialling on
    std::shared_ptr<OwnSendQueue> send_queue;
    std::optional<RingWriter> writer;
    Slots slots;
    std::vector<ChannelTensors> planned;  // for which no slots have been made
    std::list<Waiting> waiting;           // for room in the ring, or for a slot
    std::list<Waiting> spare;             // for the next ones
    std::uint64_t sequence = 0;

    Descriptor from;  // from its introduction on
    Descriptor process;
    Descriptor bell;
    Foreign<Board> board;
    Foreign<SendQueue> inbox;  // its send_queue for us
    std::optional<FrameReader> reader;
    TensorList assembling;
    std::uint64_t beat = 0;
    Clock::time_point alive_at;  // when that changed
    bool left = false;
    bool gone = false;
  };

  // region_loop.cpp: life and turns
  Neighbour& dialled(Rank rank);
  void watch_descriptor(int descriptor, EventKind kind, Rank rank);
  void run() noexcept;
  template <class Body>
  void guarded(const Body& body) noexcept {
    try {
      body();
    } catch (const std::exception& error) {
      broke(error);
    }
  }
  void broke(const std::exception& error);
  void take_turn() noexcept;
  void rest(Clock::duration longest) noexcept;
  void tick();
  bool look_for_news(Clock::duration longest);
  bool has_news() const;
  std::chrono::milliseconds longest_rest() const;
  void take_events(int timeout_ms);
  void take_event(const Event& event);
  void ring_bell(const Neighbour& to, Sleep least) const;
  void ring_all_bells() const;

  // region_loop_frames.cpp: frames in and out
  template <class Body>
  void checked(const Neighbour& neighbour, const Body& body);
  void refuse_memory(const Neighbour& neighbour, const TransportError& reason);
  void flush(Neighbour& to);
  bool post(Neighbour& to, Waiting& waiting);
  std::optional<Slots::Taken> slot_for(Neighbour& to, const DataHeader& header);
  void make_planned(Neighbour& to);
  bool give_segment(Neighbour& to, const Region& segment);
  void sweep(Neighbour& from);
  void drain(Neighbour& from);
  void take_frame(Neighbour& from, const RingEntry& entry);
  Tensor tensor_of(Neighbour& from, const FrameReader::Frame& frame);

  // region_loop_peers.cpp: who comes and who goes
  void accept_guests();
  bool read_guest(Descriptor& guest);
  void take_introduction(Descriptor socket, ReceivedMessage introduction);
  bool read_segments(Neighbour& from);
  void hung_up(Neighbour& peer);
  bool may_share(Rank rank) const;
  static bool carries(const Neighbour& peer);
  void meet(Rank rank);
  void close(Neighbour& peer);

  // region_loop_watch.cpp: time passes
  void watch(Clock::time_point now);
  std::optional<Watch::News> news_of(Rank rank) const;
  bool is_settled(const Neighbour& peer) const;
  void leave_when_settled();
  void fail(FailureCause cause, const std::string& text);
  void fail(const Failure& failure) { fail(failure.cause, failure.text); }
  void shout(const Failure& failure);

  const SharedMemoryOptions options_;
  Mailbox& mailbox_;
  const ProgressSlot& slot_;
  const ListeningSocket socket_;
  const std::optional<Carrying> carrying_;
  Descriptor bell_;    // eventfd
  Descriptor events_;  // epoll, of everything that may end a sleep
  Own<Board> board_;
  std::vector<std::unique_ptr<Neighbour>> neighbours_;  // by rank; null at our own
  std::vector<Neighbour*> known_;                       // dialled, or introduced to us
  std::vector<Descriptor> guests_;                      // who have not said yet who they are
  TensorPool pool_;                                     // of small received tensors
  Watch watch_;
  LivenessMonitor& monitor_ = watch_.monitor();
  const Clock::duration spin_;
  int spun_in_vain_ = 0;
  Clock::time_point due_;         // the latest moment of the next turn, unless we do not run
  Clock::time_point next_look_;   // at events
  Clock::time_point next_watch_;  // at who is silent or hangs
  std::size_t next_confirmed_ = 0;
  std::optional<Failure> stopped_;
  bool leaving_ = false;
  bool settled_ = false;     // of Carrying
  mutable std::mutex turn_;  // guards everything above; locked before mutex_

  std::mutex mutex_;  // guards asked_to_stop_ and end_
  std::condition_variable woken_;
  std::optional<Failure> asked_to_stop_;
  bool end_ = false;
  std::atomic<bool> called_{false};  // asked_to_stop_ is news
  std::atomic<int> introductions_{0};
  std::jthread thread_;
};

}  // namespace millrace::shared_memory
