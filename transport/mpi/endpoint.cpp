// The endpoint itself: what the rank's thread calls. It hashes outside of its turns, and leaves the
// rest to the mailbox and the message loop.
#include "transport/mpi/endpoint.hpp"

#include <optional>
#include <utility>

#include "transport/mpi/message_loop.hpp"
#include "transport/wire/frame.hpp"

namespace millrace::mpi {

namespace {

class MpiEndpoint final : public Endpoint {
 public:
  explicit MpiEndpoint(const MpiOptions& options)
      : options_(options),
        mailbox_(Rank{options.rank}, options.world, options.depths),
        slot_(std::string()),
        loop_(options, mailbox_, slot_) {}

  [[nodiscard]] Rank rank() const override { return Rank{options_.rank}; }
  [[nodiscard]] int world() const override { return options_.world; }

  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    check_other(to);
    const auto hashes = checked_hashes(to, tag, payload);
    if (!mailbox_.try_room(to, tag.direction)) {
      const std::uint64_t question = mailbox_.next_question(to);
      loop_.ask(to, question);
      loop_.wait(Deadline::max(),
                 [&] { return mailbox_.try_room_after(to, tag.direction, question); });
    }
    loop_.send(to, tag, std::move(payload), hashes);
    slot_.begin({.doing = Doing::Pauses, .sent = true, .peer = to, .tag = tag});
  }

  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    check_other(from);
    slot_.begin({.doing = Doing::Waits, .peer = from, .tag = tag});
    std::optional<TensorList> message;
    const bool came =
        loop_.wait(deadline, [&] { return (message = mailbox_.take(from, tag)).has_value(); });
    if (!came)
      throw TransportError("deadline passed: rank " + std::to_string(options_.rank) +
                           " waits for the " + to_string(tag) + " from rank " +
                           std::to_string(from.value));
    slot_.begin({.doing = Doing::Pauses, .peer = from, .tag = tag});
    if (mailbox_.owes_credit(from, tag.direction)) loop_.tell_taken(from);
    return std::move(*message);
  }

  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    check_other(from);
    std::optional<TensorList> message = mailbox_.take(from, tag);
    if (message && mailbox_.owes_credit(from, tag.direction)) loop_.tell_taken(from);
    return message;
  }

  void working(const Work& work) noexcept override { slot_.begin(activity_of(work)); }

  [[nodiscard]] std::string doing() const override { return to_string(slot_.now()); }

  void cancel(const std::string& reason) noexcept override {
    if (mailbox_.fail(FailureCause::Cancelled, reason)) loop_.stop(FailureCause::Cancelled, reason);
  }

  void goodbye(Deadline deadline) override {
    mailbox_.throw_if_failed();
    slot_.begin({.doing = Doing::Departs});
    loop_.leave();
    if (!loop_.wait(deadline, [&] { return mailbox_.settled(); }))
      throw TransportError("deadline passed: rank " + std::to_string(options_.rank) +
                           " could not say goodbye to all ranks");
  }

 private:
  void check_other(Rank peer) const {
    require(peer.value >= 0 && peer.value < options_.world && peer.value != options_.rank, [&] {
      return "rank " + std::to_string(peer.value) + " is not another rank of a world of " +
             std::to_string(options_.world);
    });
  }

  /// Of each tensor. Refuses here, on the caller's thread, what no frame can carry.
  [[nodiscard]] std::vector<std::uint64_t> checked_hashes(Rank to,
                                                          const MessageTag& tag,
                                                          const TensorList& payload) const {
    DataHeader header;
    header.tag = tag;
    header.destination = to;
    header.tensor_count = static_cast<int>(payload.size());
    static_cast<void>(encode(header));
    std::vector<std::uint64_t> hashes;
    for (std::size_t i = 0; i < payload.size(); ++i) {
      const std::size_t bytes = payload[i].bytes();
      require(bytes <= options_.largest_payload, [&] {
        return "a tensor of " + std::to_string(bytes) +
               " bytes is above the agreed largest payload of " +
               std::to_string(options_.largest_payload);
      });
      if (options_.hash_payloads)
        hashes.push_back(payload_hash({static_cast<const std::byte*>(payload[i].data()), bytes}));
    }
    return hashes;
  }

  const MpiOptions options_;
  Mailbox mailbox_;
  ProgressSlot slot_;
  MessageLoop loop_;
};

}  // namespace

std::unique_ptr<Endpoint> make_endpoint(const MpiOptions& options) {
  return std::make_unique<MpiEndpoint>(options);
}

}  // namespace millrace::mpi
