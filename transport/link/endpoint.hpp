// The endpoint of a rank that shares no process with the others: one facade over the links of all
// backends.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "transport/liveness/progress_slot.hpp"
#include "transport/mailbox/mailbox.hpp"
#include "transport/wire/envelope.hpp"

namespace millrace {

/// Throws InvalidArgument unless `member.rank` is in its world.
void check_member(const Membership& member);

/// Throws InvalidArgument unless there is one address per rank.
void check_addresses(const std::vector<PeerAddress>& addresses, int world);

/// Throws TransportError unless this process may open `needed` descriptors more.
void check_descriptors(int world, std::size_t needed);

/// Throws InvalidArgument unless `peer` is another rank of the world.
void check_peer(const Membership& member, Rank peer);

/// Throws InvalidArgument for a tag or a number of tensors that does not fit a header, and for a
/// tensor above options.largest_payload.
void check_message(const LinkOptions& options, const MessageTag& tag, const TensorList& payload);

/// payload_hash of each tensor, or nothing without options.hash_payloads. Cost: about 50 us per
/// MiB.
[[nodiscard]] std::vector<std::uint64_t> hashes_of(const LinkOptions& options,
                                                   const TensorList& payload);

/// Texts of protocol failures, the same for all links.
[[nodiscard]] std::string refused_frame(Rank self, Rank from, Refusal refusal);
[[nodiscard]] std::string surplus_message(Rank self, Rank from, const MessageTag& tag);
[[nodiscard]] std::string broken_link(Rank self, const std::exception& error);

/// Throw TransportError: the deadline passed.
[[noreturn]] void refuse_late_message(Rank self, Rank from, const MessageTag& tag);
[[noreturn]] void refuse_late_shutdown(Rank self);

/// The link of a backend: sends and receives the messages of one mailbox. Errors become the
/// mailbox's failure. `learn_room` reads what the receiver has taken, where it can be read; `ask`
/// asks for it. `leave` is false if the deadline passed; then the mailbox settles. `wait` returns
/// the answer of `done` at the deadline, `from` being the rank whose message is awaited.
/// Thread-safety: `stop` from any thread; everything else from the rank's thread.
template <class Link>
concept RankLink = requires(Link& link,
                            Rank rank,
                            const MessageTag& tag,
                            TensorList payload,
                            Deadline deadline,
                            bool (&done)(),
                            const Failure& failure) {
  link.send(rank, tag, std::move(payload));
  link.learn_room(rank);
  link.ask(rank, std::uint64_t{});
  link.acknowledge_taken(rank, tag.direction);
  { link.leave(deadline) } -> std::same_as<bool>;
  link.stop(failure);
  { link.wait(deadline, done, std::optional<Rank>()) } -> std::same_as<bool>;
  { link.shared_bytes() } -> std::same_as<std::vector<SharedBytes>>;
};

/// Thread-safety: as Endpoint.
template <class Link>
class LinkedEndpoint final : public Endpoint {
 public:
  /// The link is made of `options`, the mailbox, the slot and `parts`. `slot` is created first and
  /// destroyed last: it holds the rank.
  template <class Options, class... Parts>
  LinkedEndpoint(const Options& options, std::unique_ptr<ProgressSlot> slot, Parts&&... parts)
      : options_(options),
        slot_(std::move(slot)),
        mailbox_(options.rank, options.world, options.depths, news()),
        link_(options, mailbox_, *slot_, std::forward<Parts>(parts)...) {
    static_assert(RankLink<Link>);
  }

  [[nodiscard]] const Link& link() const { return link_; }

  [[nodiscard]] Rank rank() const override { return options_.rank; }
  [[nodiscard]] int world() const override { return options_.world; }

  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    check_peer(options_, to);
    check_message(options_, tag, payload);
    take_room(to, tag.direction);
    link_.send(to, tag, std::move(payload));
    slot_->begin({.doing = Doing::Pauses, .sent = true, .peer = to, .tag = tag});
  }

  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    check_peer(options_, from);
    slot_->begin({.doing = Doing::Waits, .peer = from, .tag = tag});
    std::optional<TensorList> message;
    const auto done = [&] { return (message = mailbox_.take(from, tag)).has_value(); };
    if (!link_.wait(deadline, done, from)) refuse_late_message(rank(), from, tag);
    slot_->begin({.doing = Doing::Pauses, .peer = from, .tag = tag});
    link_.acknowledge_taken(from, tag.direction);
    return std::move(*message);
  }

  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    check_peer(options_, from);
    std::optional<TensorList> message = mailbox_.take(from, tag);
    if (message) link_.acknowledge_taken(from, tag.direction);
    return message;
  }

  void working(const Work& work) noexcept override { slot_->begin(activity_of(work)); }

  [[nodiscard]] std::string doing() const override { return to_string(slot_->now()); }

  [[nodiscard]] std::vector<SharedBytes> shared_bytes() const override {
    return link_.shared_bytes();
  }

  void cancel(const std::string& reason) noexcept override {
    if (mailbox_.fail(FailureCause::Cancelled, reason))
      link_.stop(Failure{FailureCause::Cancelled, reason});
  }

  void leave(Deadline deadline) override {
    mailbox_.throw_if_failed();
    slot_->begin({.doing = Doing::Departs});
    const auto done = [&] { return mailbox_.settled(); };
    if (!link_.leave(deadline) || !link_.wait(deadline, done)) refuse_late_shutdown(rank());
  }

 private:
  /// Where a rank waits at one of several places, what arrives at another ends the wait.
  std::function<void()> news() {
    if constexpr (requires { link_.end_wait(); })
      return [this] { link_.end_wait(); };
    else
      return {};
  }

  void take_room(Rank to, Direction direction) {
    if (mailbox_.try_room(to, direction)) return;
    link_.learn_room(to);
    if (mailbox_.try_room(to, direction)) return;
    const std::uint64_t question = mailbox_.next_question(to);
    link_.ask(to, question);
    const auto done = [&] { return mailbox_.try_room_after(to, direction, question); };
    if (!done()) link_.wait(Deadline::max(), done);
  }

  const LinkOptions options_;
  std::unique_ptr<ProgressSlot> slot_;
  Mailbox mailbox_;
  Link link_;
};

}  // namespace millrace
