// The endpoint itself: what the rank's thread calls. It hashes and copies outside of its turns with
// the sockets, and leaves the rest to the mailbox and the socket loop.
#include "transport/zeromq/endpoint.hpp"

#include <optional>
#include <utility>

#include "transport/wire/frame.hpp"
#include "transport/zeromq/socket_loop.hpp"

namespace millrace {

namespace {

using zeromq::SocketLoop;

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data()), tensor.bytes()};
}

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
    check_peer(to);
    check_message(to, tag, payload);
    zeromq::Outgoing message{to, tag, std::move(payload), {}};
    if (options_.hash_payloads)
      for (std::size_t i = 0; i < message.tensors.size(); ++i)
        message.hashes.push_back(payload_hash(bytes_of(message.tensors[i])));
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
    check_peer(from);
    slot_->begin({.doing = Doing::Waits, .peer = from, .tag = tag});
    std::optional<TensorList> message;
    if (!loop_.wait(deadline, [&] { return (message = mailbox_.take(from, tag)).has_value(); }))
      throw TransportError("deadline passed: rank " + std::to_string(options_.rank.value) +
                           " waits for the " + to_string(tag) + " from rank " +
                           std::to_string(from.value));
    slot_->begin({.doing = Doing::Pauses, .peer = from, .tag = tag});
    if (mailbox_.owes_credit(from, tag.direction)) loop_.now(zeromq::Credit{from});
    return std::move(*message);
  }

  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    check_peer(from);
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
    if (!loop_.wait(deadline, [&] { return mailbox_.settled(); }))
      throw TransportError("deadline passed: rank " + std::to_string(options_.rank.value) +
                           " could not say goodbye to all ranks");
  }

 private:
  void check_peer(Rank peer) const {
    require(peer.value >= 0 && peer.value < options_.world && peer != options_.rank, [&] {
      return "rank " + std::to_string(peer.value) + " is not another rank of a world of " +
             std::to_string(options_.world);
    });
  }

  /// Refuses here, on the caller's thread, what no frame can carry.
  void check_message(Rank to, const MessageTag& tag, const TensorList& payload) const {
    DataHeader header;
    header.tag = tag;
    header.destination = to;
    header.tensor_count = static_cast<int>(payload.size());
    static_cast<void>(encode(header));
    for (std::size_t i = 0; i < payload.size(); ++i)
      require(payload[i].bytes() <= options_.largest_payload, [&] {
        return "a tensor of " + std::to_string(payload[i].bytes()) +
               " bytes is above the agreed largest payload of " +
               std::to_string(options_.largest_payload);
      });
  }

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
