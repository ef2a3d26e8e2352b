// The endpoint itself: what the rank's thread calls. It hashes and copies outside of its turns with
// the sockets, and leaves the rest to the mailbox and the socket loop. Where ranks of one host
// share memory, messages go there, to the same mailbox, and everything else stays with the sockets.
#include "transport/zeromq/endpoint.hpp"

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "transport/wire/request.hpp"
#include "transport/zeromq/socket_loop.hpp"

namespace millrace {

namespace {

using shared_memory::Carrying;
using shared_memory::ListeningSocket;
using shared_memory::RegionLoop;
using zeromq::SocketAddresses;
using zeromq::SocketLoop;

SharedMemoryOptions memory_options(const ZeroMqOptions& options) {
  SharedMemoryOptions memory;
  static_cast<LinkOptions&>(memory) = options;
  return memory;
}

std::vector<Rank> neighbours_in(const ZeroMqOptions& options,
                                const std::vector<SocketAddresses>& addresses) {
  std::vector<Rank> ranks;
  for (int i = 0; i < options.world && !options.neighbourhood.empty(); ++i)
    if (Rank{i} != options.rank &&
        addresses[static_cast<std::size_t>(i)].neighbourhood == options.neighbourhood)
      ranks.push_back(Rank{i});
  return ranks;
}

/// "rank 1" or "ranks 1, 2".
std::string names_of(const std::vector<Rank>& ranks) {
  std::string names = ranks.size() == 1 ? "rank" : "ranks";
  for (const Rank rank : ranks)
    names += (rank == ranks.front() ? " " : ", ") + std::to_string(rank.value);
  return names;
}

class ZeroMqEndpoint final : public Endpoint {
 public:
  ZeroMqEndpoint(const ZeroMqOptions& options,
                 std::unique_ptr<ProgressSlot> slot,
                 zeromq::Listeners listeners,
                 const std::vector<SocketAddresses>& addresses)
      : options_(options),
        mailbox_(
            options.rank,
            options.world,
            options.depths,
            options.neighbourhood.empty() ? std::function<void()>() : [this] { call(); }),
        slot_(std::move(slot)),
        loop_(options, std::move(listeners), addresses, mailbox_, *slot_) {}

  /// From now on messages for neighbours go through memory, once they are reached there.
  std::string share(ListeningSocket socket, const std::vector<SocketAddresses>& addresses) {
    const std::vector<Rank> neighbours = neighbours_in(options_, addresses);
    if (neighbours.empty())
      return names_of({rank()}) + " shares its host with no other: all over tcp";
    std::vector<std::string> sockets;
    for (const SocketAddresses& each : addresses) sockets.push_back(each.memory);
    const auto stop = [this](FailureCause cause, const std::string& text) {
      loop_.post(Failure{cause, text});
    };
    try {
      memory_.emplace(memory_options(options_),
                      std::move(socket),
                      std::move(sockets),
                      mailbox_,
                      *slot_,
                      Carrying{neighbours, stop, [this] { call(); }});
    } catch (const TransportError& error) {
      return names_of({rank()}) + " shares no memory: " + error.what();
    }
    return describe(neighbours);
  }

  [[nodiscard]] Rank rank() const override { return options_.rank; }
  [[nodiscard]] int world() const override { return options_.world; }

  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    check_peer(rank(), world(), to);
    check_message(to, tag, payload, options_.largest_payload);
    const bool carried = memory_ && memory_->carries_to(to);
    take_room(to, tag.direction, carried);
    if (carried) {
      memory_->send(to, tag, std::move(payload));
    } else {
      auto hashes = options_.hash_payloads ? hashes_of(payload) : std::vector<std::uint64_t>();
      loop_.now(zeromq::Outgoing{to, tag, std::move(payload), std::move(hashes)});
    }
    slot_->begin({.doing = Doing::Pauses, .sent = true, .peer = to, .tag = tag});
  }

  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    check_peer(rank(), world(), from);
    slot_->begin({.doing = Doing::Waits, .peer = from, .tag = tag});
    std::optional<TensorList> message;
    const bool came =
        wait_for(from, deadline, [&] { return (message = mailbox_.take(from, tag)).has_value(); });
    if (!came) refuse_late_message(rank(), from, tag);
    slot_->begin({.doing = Doing::Pauses, .peer = from, .tag = tag});
    tell_taken(from, tag.direction);
    return std::move(*message);
  }

  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    check_peer(rank(), world(), from);
    std::optional<TensorList> message = mailbox_.take(from, tag);
    if (message) tell_taken(from, tag.direction);
    return message;
  }

  void working(const Work& work) noexcept override { slot_->begin(activity_of(work)); }

  [[nodiscard]] std::string doing() const override { return to_string(slot_->now()); }

  [[nodiscard]] std::vector<SharedBytes> shared_bytes() const override {
    return memory_ ? memory_->shared_bytes() : std::vector<SharedBytes>();
  }

  void cancel(const std::string& reason) noexcept override {
    if (mailbox_.fail(FailureCause::Cancelled, reason))
      loop_.post(Failure{FailureCause::Cancelled, reason});
  }

  void goodbye(Deadline deadline) override {
    mailbox_.throw_if_failed();
    slot_->begin({.doing = Doing::Departs});
    bool done = true;
    if (memory_) {
      // Before the sockets' goodbye: who hears that one has all that was sent.
      memory_->leave();
      done = wait(true, deadline, [&] {
        mailbox_.throw_if_failed();
        return memory_->settled();
      });
    }
    if (done) {
      loop_.now(zeromq::Leave{});
      done = wait(false, deadline, [&] { return mailbox_.settled(); });
    }
    if (!done) refuse_late_goodbye(rank());
  }

 private:
  enum class At : std::uint8_t { Work, Sockets, Memory };

  void take_room(Rank to, Direction direction, bool carried) {
    if (mailbox_.try_room(to, direction)) return;
    if (carried) memory_->learn_room(to);
    if (carried && mailbox_.try_room(to, direction)) return;
    const std::uint64_t question = mailbox_.next_question(to);
    loop_.now(zeromq::Question{to, question});
    wait(false, Deadline::max(), [&] { return mailbox_.try_room_after(to, direction, question); });
  }

  void tell_taken(Rank from, Direction direction) {
    if (memory_ && memory_->hears(from))
      memory_->tell_taken(from);
    else if (mailbox_.owes_credit(from, direction))
      loop_.now(zeromq::Credit{from});
  }

  template <class Done>
  bool wait(bool at_memory, Deadline deadline, const Done& done) {
    if (!memory_) return loop_.wait(deadline, done);
    const Stay stay(*this, at_memory ? At::Memory : At::Sockets);
    return at_memory ? memory_->wait(deadline, done) : loop_.wait(deadline, done);
  }

  /// Where `from` is heard, which may change in the meantime.
  template <class Done>
  bool wait_for(Rank from, Deadline deadline, const Done& done) {
    for (;;) {
      const int introduced = memory_ ? memory_->introductions() : 0;
      if (!memory_ || memory_->hears(from)) return wait(memory_.has_value(), deadline, done);
      bool is_done = false;
      const bool changed = wait(false, deadline, [&] {
        is_done = done();
        return is_done || memory_->introductions() != introduced;
      });
      if (is_done || !changed) return is_done;
    }
  }

  /// Of the rank's thread.
  class Stay {
   public:
    Stay(ZeroMqEndpoint& end, At where) : end_(end) { end_.go(where); }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;
    ~Stay() { end_.go(At::Work); }

   private:
    ZeroMqEndpoint& end_;
  };

  void go(At where) {
    const std::lock_guard lock(where_mutex_);
    where_ = where;
    waiting_ = std::this_thread::get_id();
  }

  /// Whoever has news ends the rank's rest, unless the rank has found them itself.
  void call() {
    const std::lock_guard lock(where_mutex_);
    if (where_ == At::Work || waiting_ == std::this_thread::get_id()) return;
    if (where_ == At::Memory)
      memory_->wake_up();
    else
      loop_.post(zeromq::Question{rank(), 0});
  }

  std::string describe(const std::vector<Rank>& neighbours) {
    const std::vector<Rank> reached = memory_->reached();
    std::vector<Rank> missed;
    for (const Rank each : neighbours)
      if (std::ranges::find(reached, each) == reached.end()) missed.push_back(each);
    std::string text = names_of({rank()});
    if (!reached.empty()) text += " shares memory with " + names_of(reached);
    if (!missed.empty())
      text += (reached.empty() ? "" : ", but") + std::string(" does not reach ") +
              names_of(missed) + " of its host there, and talks with " +
              (missed.size() == 1 ? "it" : "them") + " over tcp";
    return text;
  }

  const ZeroMqOptions options_;
  std::mutex where_mutex_;  // guards where_ and waiting_
  At where_ = At::Work;
  std::thread::id waiting_;
  Mailbox mailbox_;
  std::unique_ptr<ProgressSlot> slot_;
  SocketLoop loop_;
  std::optional<RegionLoop> memory_;
};

}  // namespace

zeromq::Opened zeromq::make_endpoint(const ZeroMqOptions& options,
                                     std::unique_ptr<ProgressSlot> slot,
                                     Listeners listeners,
                                     ListeningSocket memory,
                                     const std::vector<SocketAddresses>& addresses) {
  auto endpoint =
      std::make_unique<ZeroMqEndpoint>(options, std::move(slot), std::move(listeners), addresses);
  std::string connections;
  if (memory.number() >= 0) connections = endpoint->share(std::move(memory), addresses);
  return {std::move(endpoint), std::move(connections)};
}

}  // namespace millrace
