// The endpoint itself: what the rank's thread calls. It hashes and copies outside of its turns with
// the sockets, and leaves the rest to the mailbox and the socket loop.
#include <utility>

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
                 const std::vector<PeerAddress>& addresses)
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

  void working(const Work& work) noexcept override {
    Activity activity;
    activity.doing = work.what.empty() ? Doing::Pauses : Doing::Works;
    activity.of_unit = work.of_unit;
    work.what.copy(activity.what.data(), activity.what.size());
    activity.tag.step = work.step;
    activity.tag.replica = work.replica;
    activity.tag.stage = work.stage;
    activity.tag.micro_batch = work.micro_batch;
    activity.tag.slice = work.slice;
    slot_->begin(activity);
  }

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

struct ZeroMqListener::Parts {
  ZeroMqOptions options;
  std::unique_ptr<ProgressSlot> slot;  // first to come, last to go: it holds the rank
  zeromq::Listeners listeners;
  PeerAddress address;
  bool open = false;
};

ZeroMqListener::ZeroMqListener(const ZeroMqOptions& options, std::shared_ptr<ZeroMqContext> context)
    : parts_(std::make_unique<Parts>()) {
  zeromq::check(options);
  parts_->options = options;
  parts_->slot = std::make_unique<ProgressSlot>(zeromq::slot_path(options, options.rank));
  auto& inside = context->parts();
  const std::string domain = inside.new_domain();
  inside.admit(domain, options.keys.public_keys);
  const std::string name =
      "r" + std::to_string(options.rank.value) + "." + std::to_string(options.epoch);
  parts_->listeners.data =
      zeromq::listen(inside.context, options, domain, name + ".data", parts_->address.data);
  parts_->listeners.files[0] = zeromq::file_of(parts_->address.data);
  parts_->listeners.control =
      zeromq::listen(inside.context, options, domain, name + ".control", parts_->address.control);
  parts_->listeners.files[1] = zeromq::file_of(parts_->address.control);
  parts_->listeners.context = std::move(context);
}

ZeroMqListener::~ZeroMqListener() = default;

const PeerAddress& ZeroMqListener::address() const {
  return parts_->address;
}

std::unique_ptr<Endpoint> ZeroMqListener::open(const std::vector<PeerAddress>& addresses) {
  require(!std::exchange(parts_->open, true), "this listener was opened before");
  return std::make_unique<ZeroMqEndpoint>(
      parts_->options, std::move(parts_->slot), std::move(parts_->listeners), addresses);
}

std::vector<std::unique_ptr<Endpoint>> zeromq_mesh(const ZeroMqOptions& options) {
  const auto context = std::make_shared<ZeroMqContext>();
  std::vector<CurveKeys> keys;
  std::vector<std::string> public_keys;
  for (int i = 0; options.link == ZeroMqLink::Tcp && !options.insecure && i < options.world; ++i) {
    keys.push_back(make_curve_keys());
    public_keys.push_back(keys.back().public_key);
  }
  std::vector<std::unique_ptr<ZeroMqListener>> listeners;
  std::vector<PeerAddress> addresses;
  for (int i = 0; i < options.world; ++i) {
    ZeroMqOptions own = options;
    own.rank = Rank{i};
    if (!keys.empty()) own.keys = {keys[static_cast<std::size_t>(i)], public_keys};
    listeners.push_back(std::make_unique<ZeroMqListener>(own, context));
    addresses.push_back(listeners.back()->address());
  }
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (const auto& listener : listeners) endpoints.push_back(listener->open(addresses));
  return endpoints;
}

}  // namespace millrace
