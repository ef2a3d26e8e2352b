// The endpoint itself: what the rank's thread calls. It hashes outside of its turns, and leaves the
// rest to the mailbox and the message loop.
#include "transport/mpi/endpoint.hpp"

#include <optional>
#include <utility>

#include "transport/mpi/message_loop.hpp"
#include "transport/wire/request.hpp"

namespace millrace::mpi {

namespace {

class MpiEndpoint final : public Endpoint {
 public:
  explicit MpiEndpoint(const MpiOptions& options)
      : options_(options),
        mailbox_(options.rank, options.world, options.depths),
        slot_(std::string()),
        loop_(options, mailbox_, slot_) {}

  [[nodiscard]] Rank rank() const override { return options_.rank; }
  [[nodiscard]] int world() const override { return options_.world; }

  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    check_peer(rank(), world(), to);
    check_message(to, tag, payload, options_.largest_payload);
    const auto hashes = options_.hash_payloads ? hashes_of(payload) : std::vector<std::uint64_t>();
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
    check_peer(rank(), world(), from);
    slot_.begin({.doing = Doing::Waits, .peer = from, .tag = tag});
    std::optional<TensorList> message;
    const bool came =
        loop_.wait(deadline, [&] { return (message = mailbox_.take(from, tag)).has_value(); });
    if (!came) refuse_late_message(rank(), from, tag);
    slot_.begin({.doing = Doing::Pauses, .peer = from, .tag = tag});
    if (mailbox_.owes_credit(from, tag.direction)) loop_.tell_taken(from);
    return std::move(*message);
  }

  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override {
    check_peer(rank(), world(), from);
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
    if (!loop_.wait(deadline, [&] { return mailbox_.settled(); })) refuse_late_goodbye(rank());
  }

 private:
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
