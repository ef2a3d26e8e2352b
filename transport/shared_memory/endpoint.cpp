// The endpoint itself: what the rank's thread calls. The rest is the mailbox's and the loop's.
#include "transport/shared_memory/endpoint.hpp"

#include <optional>
#include <utility>

#include "transport/wire/request.hpp"

namespace millrace::shared_memory {

namespace {

class SharedMemoryEndpoint final : public Endpoint {
 public:
  SharedMemoryEndpoint(const SharedMemoryOptions& options,
                       std::unique_ptr<ProgressSlot> slot,
                       ListeningSocket socket,
                       std::vector<std::string> sockets)
      : options_(options),
        mailbox_(options.rank, options.world, options.depths),
        slot_(std::move(slot)),
        loop_(options, std::move(socket), std::move(sockets), mailbox_, *slot_) {}

  [[nodiscard]] Rank rank() const override { return options_.rank; }
  [[nodiscard]] int world() const override { return options_.world; }

  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    check_peer(rank(), world(), to);
    check_message(to, tag, payload, options_.largest_payload);
    if (!mailbox_.try_room(to, tag.direction)) {
      // What the receiver has taken is there to be read: no need to ask it and wait.
      const std::uint64_t question = mailbox_.next_question(to);
      loop_.learn_room(to);
      mailbox_.answer(to, question);
      static_cast<void>(mailbox_.try_room_after(to, tag.direction, question));
    }
    loop_.send(to, tag, std::move(payload));
    slot_->begin({.doing = Doing::Pauses, .sent = true, .peer = to, .tag = tag});
  }

  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    check_peer(rank(), world(), from);
    slot_->begin({.doing = Doing::Waits, .peer = from, .tag = tag});
    std::optional<TensorList> message;
    if (!loop_.wait(deadline, [&] { return (message = mailbox_.take(from, tag)).has_value(); }))
      refuse_late_message(rank(), from, tag);
    loop_.tell_taken(from);
    slot_->begin({.doing = Doing::Pauses, .peer = from, .tag = tag});
    return std::move(*message);
  }

  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    check_peer(rank(), world(), from);
    std::optional<TensorList> message = mailbox_.take(from, tag);
    if (message) loop_.tell_taken(from);
    return message;
  }

  void working(const Work& work) noexcept override { slot_->begin(activity_of(work)); }

  [[nodiscard]] std::string doing() const override { return to_string(slot_->now()); }

  [[nodiscard]] std::vector<SharedBytes> shared_bytes() const override {
    return loop_.shared_bytes();
  }

  void cancel(const std::string& reason) noexcept override {
    if (mailbox_.fail(FailureCause::Cancelled, reason)) loop_.cancel(reason);
  }

  void goodbye(Deadline deadline) override {
    mailbox_.throw_if_failed();
    slot_->begin({.doing = Doing::Departs});
    loop_.leave();
    if (!loop_.wait(deadline, [&] { return mailbox_.settled(); })) refuse_late_goodbye(rank());
  }

 private:
  const SharedMemoryOptions options_;
  Mailbox mailbox_;
  std::unique_ptr<ProgressSlot> slot_;
  RegionLoop loop_;
};

}  // namespace

std::unique_ptr<Endpoint> make_endpoint(const SharedMemoryOptions& options,
                                        std::unique_ptr<ProgressSlot> slot,
                                        ListeningSocket socket,
                                        std::vector<std::string> sockets) {
  return std::make_unique<SharedMemoryEndpoint>(
      options, std::move(slot), std::move(socket), std::move(sockets));
}

}  // namespace millrace::shared_memory
