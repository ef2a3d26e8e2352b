// Mailboxes: one per receiving rank, with a mutex, a condition and one queue per channel.
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/transport/in_process.hpp"

namespace millrace {

namespace {

constexpr int kUnbounded = 0;

/// The messages of one channel that were sent and not yet received. Storage is kept, so that a
/// channel that once held k messages takes k again without allocation.
class Channel {
 public:
  void set_depth(int depth) { depth_ = depth; }
  [[nodiscard]] int depth() const { return depth_; }
  [[nodiscard]] bool is_full() const {
    return depth_ != kUnbounded && arrivals_.size() >= static_cast<std::size_t>(depth_);
  }

  void put(const MessageTag& tag, TensorList&& payload) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(messages_.size()));
      messages_.emplace_back();
    }
    const std::uint32_t place = free_.back();
    free_.pop_back();
    messages_[place] = {tag, std::move(payload)};
    arrivals_.push_back(place);
  }

  /// Takes the oldest message with this tag.
  std::optional<TensorList> take(const MessageTag& tag) {
    for (auto arrival = arrivals_.begin(); arrival != arrivals_.end(); ++arrival) {
      if (messages_[*arrival].tag != tag) continue;
      const std::uint32_t place = *arrival;
      arrivals_.erase(arrival);
      free_.push_back(place);
      return std::move(messages_[place].payload);
    }
    return std::nullopt;
  }

 private:
  struct Message {
    MessageTag tag;
    TensorList payload;
  };

  int depth_ = kUnbounded;
  std::vector<Message> messages_;
  std::vector<std::uint32_t> arrivals_;  // places in messages_, oldest first
  std::vector<std::uint32_t> free_;
};

/// What is on its way to one rank.
struct Mailbox {
  std::mutex mutex;  // guards channels; taken alone, never with another mutex
  std::condition_variable_any changed;
  std::vector<std::array<Channel, 3>> channels;  // [source rank][direction]
};

enum class Presence : std::uint8_t { Here, Left, Lost };

std::size_t index_of(Direction direction) {
  return static_cast<std::size_t>(direction);
}

const char* noun(Direction direction) {
  switch (direction) {
    case Direction::Forward:
      return "forward";
    case Direction::Backward:
      return "backward";
    case Direction::Collective:
      return "collective";
  }
  return "?";
}

}  // namespace

struct InProcessHub::Shared {
  explicit Shared(int size)
      : world(size),
        mailboxes(static_cast<std::size_t>(size)),
        presence(static_cast<std::size_t>(size)),
        taken(static_cast<std::size_t>(size), false) {
    for (Mailbox& mailbox : mailboxes) mailbox.channels.resize(static_cast<std::size_t>(size));
  }

  void require_rank(Rank rank, const char* what) const {
    require(rank.value >= 0 && rank.value < world, [&] {
      return std::string(what) + " is rank " + std::to_string(rank.value) +
             "; the world has ranks 0 to " + std::to_string(world - 1);
    });
  }

  /// Wakes every wait. The lock makes sure that a waiter is either asleep or has yet to look.
  void wake_all() noexcept {
    for (Mailbox& mailbox : mailboxes) {
      { const std::lock_guard lock(mailbox.mutex); }
      mailbox.changed.notify_all();
    }
  }

  void set_presence(Rank rank, Presence now) noexcept {
    presence[rank.index()].store(now);
    wake_all();
  }

  void cancel(const std::string& why) noexcept {
    {
      const std::lock_guard lock(reason_mutex);
      if (cancelled.load()) return;
      try {
        reason = why;
      } catch (...) {
        reason.clear();
      }
      cancelled.store(true);
    }
    wake_all();
  }

  [[nodiscard]] std::string reason_of_cancel() {
    const std::lock_guard lock(reason_mutex);
    return reason;
  }

  const int world;
  std::vector<Mailbox> mailboxes;               // by receiving rank
  std::vector<std::atomic<Presence>> presence;  // by rank
  std::vector<bool> taken;                      // by rank
  std::atomic<bool> cancelled = false;
  std::mutex reason_mutex;  // guards reason; taken alone
  std::string reason;
};

namespace {

/// Thread-safety: as Endpoint.
template <class Shared>
class InProcessEndpoint final : public Endpoint {
 public:
  InProcessEndpoint(std::shared_ptr<Shared> shared, Rank rank)
      : shared_(std::move(shared)), rank_(rank) {}

  InProcessEndpoint(const InProcessEndpoint&) = delete;
  InProcessEndpoint& operator=(const InProcessEndpoint&) = delete;

  ~InProcessEndpoint() override {
    if (!said_goodbye_) shared_->set_presence(rank_, Presence::Lost);
  }

  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] int world() const override { return shared_->world; }

  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    shared_->require_rank(to, "the receiver");
    require_usable();
    throw_if_gone(to, tag);
    Mailbox& mailbox = shared_->mailboxes[to.index()];
    {
      const std::lock_guard lock(mailbox.mutex);
      Channel& channel = mailbox.channels[rank_.index()][index_of(tag.direction)];
      if (channel.is_full())
        throw TransportError("the " + std::string(noun(tag.direction)) + " channel from rank " +
                             std::to_string(rank_.value) + " to rank " + std::to_string(to.value) +
                             " is declared " + std::to_string(channel.depth()) +
                             " deep and is full; it cannot take the " + to_string(tag));
      channel.put(tag, std::move(payload));
    }
    mailbox.changed.notify_all();
  }

  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    shared_->require_rank(from, "the sender");
    require_usable();
    Mailbox& mailbox = shared_->mailboxes[rank_.index()];
    std::unique_lock lock(mailbox.mutex);
    Channel& channel = mailbox.channels[from.index()][index_of(tag.direction)];
    while (true) {
      throw_if_cancelled();
      if (auto payload = channel.take(tag)) return std::move(*payload);
      throw_if_gone(from, tag);
      if (mailbox.changed.wait_until(lock, deadline) == std::cv_status::timeout) {
        throw_if_cancelled();
        if (auto payload = channel.take(tag)) return std::move(*payload);
        throw TransportError("the " + to_string(tag) + " did not arrive from rank " +
                             std::to_string(from.value) + " before the deadline");
      }
    }
  }

  void cancel(const std::string& reason) noexcept override { shared_->cancel(reason); }

  void goodbye(Deadline) override {
    // What was sent lies in the receivers' mailboxes already: nothing to wait for.
    throw_if_cancelled();
    said_goodbye_ = true;
    shared_->set_presence(rank_, Presence::Left);
  }

 private:
  void require_usable() {
    if (said_goodbye_)
      throw TransportError("rank " + std::to_string(rank_.value) +
                           " said goodbye; its endpoint is closed");
    throw_if_cancelled();
  }

  void throw_if_cancelled() {
    if (shared_->cancelled.load()) throw Cancelled(shared_->reason_of_cancel());
  }

  void throw_if_gone(Rank peer, const MessageTag& tag) {
    const Presence presence = shared_->presence[peer.index()].load();
    if (presence == Presence::Here) return;
    throw TransportError("rank " + std::to_string(peer.value) +
                         (presence == Presence::Left ? " said goodbye" : " was lost") +
                         " before the " + to_string(tag) + " was handed over");
  }

  std::shared_ptr<Shared> shared_;  // with the hub and the other endpoints
  Rank rank_;
  bool said_goodbye_ = false;
};

}  // namespace

InProcessHub::InProcessHub(int world, std::span<const ChannelDepth> depths) {
  require(world >= 1, "world is " + std::to_string(world) + "; it has at least 1 rank");
  shared_ = std::make_shared<Shared>(world);
  for (const ChannelDepth& channel : depths) {
    shared_->require_rank(channel.source, "a channel's source");
    shared_->require_rank(channel.destination, "a channel's destination");
    require(channel.depth >= 1,
            "a channel's depth is " + std::to_string(channel.depth) + "; it is at least 1");
    shared_->mailboxes[channel.destination.index()]
        .channels[channel.source.index()][index_of(channel.direction)]
        .set_depth(channel.depth);
  }
}

InProcessHub::~InProcessHub() = default;

std::unique_ptr<Endpoint> InProcessHub::endpoint(Rank rank) {
  shared_->require_rank(rank, "the endpoint");
  require(!shared_->taken[rank.index()],
          "the endpoint of rank " + std::to_string(rank.value) + " was taken before");
  shared_->taken[rank.index()] = true;
  return std::make_unique<InProcessEndpoint<Shared>>(shared_, rank);
}

}  // namespace millrace
