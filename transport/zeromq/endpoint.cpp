// The endpoint itself: what the rank's thread calls. It hashes and copies outside of its turns with
// the sockets, and leaves the rest to the mailbox and the socket loop.
#include "transport/zeromq/endpoint.hpp"

#include <optional>
#include <utility>

#include "transport/wire/request.hpp"
#include "transport/zeromq/socket_loop.hpp"

namespace millrace {

namespace {

using zeromq::SocketLoop;

class ZeroMqEndpoint final : public Endpoint {
 public:
  ZeroMqEndpoint(const ZeroMqOptions& options,
                 std::unique_ptr<ProgressSlot> slot,
                 zeromq::Listeners listeners,
                 const std::vector<zeromq::SocketAddresses>& addresses)
      : options_(options),
        mailbox_(options.rank, options.world, options.depths),
        slot_(std::move(slot)),
        loop_(options, std::move(listeners), addresses, mailbox_, *slot_) {}

  [[nodiscard]] Rank rank() const override { return options_.rank; }
  [[nodiscard]] int world() const override { return options_.world; }

  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    check_peer(rank(), world(), to);
    check_message(to, tag, payload, options_.largest_payload);
    zeromq::Outgoing message{to, tag, std::move(payload), {}};
    if (options_.hash_payloads) message.hashes = hashes_of(message.tensors);
    if (!mailbox_.try_room(to, tag.direction)) {
      const std::uint64_t question = mailbox_.next_question(to);
      loop_.now(zeromq::Question{to, question});
      loop_.wait(Deadline::max(),
                 [&] { return mailbox_.try_room_after(to, tag.direction, question); });
    }
    loop_.now(std::move(message));
    slot_->begin({.doing = Doing::Pauses, .sent = true, .peer = to, .tag = tag});
  }

  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    check_peer(rank(), world(), from);
    slot_->begin({.doing = Doing::Waits, .peer = from, .tag = tag});
    std::optional<TensorList> message;
    if (!loop_.wait(deadline, [&] { return (message = mailbox_.take(from, tag)).has_value(); }))
      refuse_late_message(rank(), from, tag);
    slot_->begin({.doing = Doing::Pauses, .peer = from, .tag = tag});
    if (mailbox_.owes_credit(from, tag.direction)) loop_.now(zeromq::Credit{from});
    return std::move(*message);
  }

  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    check_peer(rank(), world(), from);
    std::optional<TensorList> message = mailbox_.take(from, tag);
    if (message && mailbox_.owes_credit(from, tag.direction)) loop_.now(zeromq::Credit{from});
    return message;
  }

  void working(const Work& work) noexcept override { slot_->begin(activity_of(work)); }

  [[nodiscard]] std::string doing() const override { return to_string(slot_->now()); }

  void cancel(const std::string& reason) noexcept override {
    if (mailbox_.fail(FailureCause::Cancelled, reason))
      loop_.post(zeromq::Stop{FailureCause::Cancelled, reason});
  }

  void goodbye(Deadline deadline) override {
    mailbox_.throw_if_failed();
    slot_->begin({.doing = Doing::Departs});
    loop_.now(zeromq::Leave{});
    if (!loop_.wait(deadline, [&] { return mailbox_.settled(); })) refuse_late_goodbye(rank());
  }

 private:
  const ZeroMqOptions options_;
  Mailbox mailbox_;
  std::unique_ptr<ProgressSlot> slot_;
  SocketLoop loop_;
};

}  // namespace

std::unique_ptr<Endpoint> zeromq::make_endpoint(const ZeroMqOptions& options,
                                                std::unique_ptr<ProgressSlot> slot,
                                                Listeners listeners,
                                                const std::vector<SocketAddresses>& addresses) {
  return std::make_unique<ZeroMqEndpoint>(
      options, std::move(slot), std::move(listeners), addresses);
}

}  // namespace millrace
