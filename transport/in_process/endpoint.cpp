// The endpoint of a rank among the threads of one process: messages are handed over in mailboxes.
#include "millrace/transport/endpoint.hpp"

#include <mutex>
#include <string>
#include <utility>

#include "transport/in_process/backend.hpp"

namespace millrace::in_process {

namespace {

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

/// Thread-safety: as Endpoint.
class InProcessEndpoint final : public Endpoint {
 public:
  InProcessEndpoint(std::shared_ptr<Hub> shared, Rank rank)
      : shared_(std::move(shared)), rank_(rank) {}

  InProcessEndpoint(const InProcessEndpoint&) = delete;
  InProcessEndpoint& operator=(const InProcessEndpoint&) = delete;

  ~InProcessEndpoint() override {
    if (!left_) shared_->set_presence(rank_, Presence::Lost);
  }

  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] int world() const override { return shared_->world; }

  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    shared_->require_rank(to, "the receiver");
    require_usable();
    throw_if_gone(to, tag);
    Arrivals& arrivals = shared_->arrivals[to.index()];
    {
      const std::lock_guard lock(arrivals.mutex);
      MessageQueue& channel = arrivals.channels[rank_.index()][index_of(tag.direction)];
      if (channel.is_full())
        throw TransportError("the " + std::string(noun(tag.direction)) + " channel from rank " +
                             std::to_string(rank_.value) + " to rank " + std::to_string(to.value) +
                             " is declared " + std::to_string(channel.depth()) +
                             " deep and is full; it cannot take the " + to_string(tag));
      channel.put(tag, std::move(payload));
    }
    arrivals.changed.notify_all();
  }

  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    shared_->require_rank(from, "the sender");
    require_usable();
    Arrivals& arrivals = shared_->arrivals[rank_.index()];
    std::unique_lock lock(arrivals.mutex);
    MessageQueue& channel = arrivals.channels[from.index()][index_of(tag.direction)];
    while (true) {
      throw_if_cancelled();
      if (auto payload = channel.take(tag)) return std::move(*payload);
      throw_if_gone(from, tag);
      if (arrivals.changed.wait_until(lock, deadline) == std::cv_status::timeout) {
        throw_if_cancelled();
        if (auto payload = channel.take(tag)) return std::move(*payload);
        throw TransportError("the " + to_string(tag) + " did not arrive from rank " +
                             std::to_string(from.value) + " before the deadline");
      }
    }
  }

  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    shared_->require_rank(from, "the sender");
    require_usable();
    Arrivals& arrivals = shared_->arrivals[rank_.index()];
    const std::lock_guard lock(arrivals.mutex);
    return arrivals.channels[from.index()][index_of(tag.direction)].take(tag);
  }

  void cancel(const std::string& reason) noexcept override { shared_->cancel(reason); }

  void leave(Deadline) override {
    // What was sent lies in the receivers' mailboxes already: nothing to wait for.
    throw_if_cancelled();
    left_ = true;
    shared_->set_presence(rank_, Presence::Left);
  }

 private:
  void require_usable() {
    if (left_)
      throw TransportError("rank " + std::to_string(rank_.value) +
                           " has left; its endpoint is closed");
    throw_if_cancelled();
  }

  void throw_if_cancelled() {
    if (shared_->cancelled.load()) throw Cancelled(shared_->reason_of_cancel());
  }

  void throw_if_gone(Rank peer, const MessageTag& tag) {
    const Presence presence = shared_->presence[peer.index()].load();
    if (presence == Presence::Here) return;
    throw PeerLost("rank " + std::to_string(peer.value) +
                   (presence == Presence::Left ? " left" : " was lost") + " before the " +
                   to_string(tag) + " was handed over");
  }

  std::shared_ptr<Hub> shared_;  // with the hub and the other endpoints
  Rank rank_;
  bool left_ = false;
};

}  // namespace

std::unique_ptr<Endpoint> make_endpoint(std::shared_ptr<Hub> hub, Rank rank) {
  return std::make_unique<InProcessEndpoint>(std::move(hub), rank);
}

}  // namespace millrace::in_process
