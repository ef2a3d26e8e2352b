// A rank that listens: its sockets are bound, and its files on this machine are held, before any
// other rank knows its address. It opens an endpoint whose messages go over sockets, or, to ranks
// of this host, through shared memory.
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "transport/link/endpoint.hpp"
#include "transport/shared_memory/backend.hpp"
#include "transport/shared_memory/region_loop.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/backend.hpp"
#include "transport/zeromq/socket_loop.hpp"
#include "transport/zeromq/sockets.hpp"

namespace millrace {

namespace {

using shared_memory::ListeningSocket;
using shared_memory::RegionLoop;
using zeromq::SocketAddresses;
using zeromq::SocketLoop;

constexpr int kLeastBacklog = 128;

std::vector<Rank> local_ranks(const ZeroMqOptions& options,
                              const std::vector<SocketAddresses>& addresses) {
  std::vector<Rank> ranks;
  for (int i = 0; i < options.world && !options.local_group.empty(); ++i)
    if (Rank{i} != options.rank &&
        addresses[static_cast<std::size_t>(i)].local_group == options.local_group)
      ranks.push_back(Rank{i});
  return ranks;
}

/// "rank 1" or "ranks 1, 2".
std::string names_of(const std::vector<Rank>& ranks) {
  std::vector<int> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value);
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(numbers, ", "));
}

/// Messages go through memory to the ranks that are reached there, else over sockets, both to the
/// same mailbox; everything else is the sockets' work. See RankLink.
class MixedLink {
 public:
  /// Shares `memory` if it is a socket.
  MixedLink(const ZeroMqOptions& options,
            Mailbox& mailbox,
            const ProgressSlot& slot,
            zeromq::Listeners listeners,
            ListeningSocket memory,
            const std::vector<SocketAddresses>& addresses)
      : options_(options),
        mailbox_(mailbox),
        sockets_(options, std::move(listeners), addresses, mailbox, slot) {
    if (memory.number() >= 0) connections_ = share(std::move(memory), addresses, slot);
  }

  /// See Listener::connections.
  [[nodiscard]] const std::string& connections() const { return connections_; }

  void send(Rank to, const MessageTag& tag, TensorList payload) {
    if (memory_ && memory_->carries_to(to)) return memory_->send(to, tag, std::move(payload));
    auto hashes = hashes_of(options_, payload);
    sockets_.now(zeromq::Outgoing{to, tag, std::move(payload), std::move(hashes)});
  }

  void learn_room(Rank to) {
    if (memory_ && memory_->carries_to(to)) memory_->learn_room(to);
  }

  void ask(Rank to, std::uint64_t question) { sockets_.now(zeromq::Question{to, question}); }

  void acknowledge_taken(Rank from, Direction direction) {
    if (memory_ && memory_->receives_from(from))
      memory_->acknowledge_taken(from, direction);
    else if (mailbox_.owes_credit(from, direction))
      sockets_.now(zeromq::Credit{from});
  }

  /// The memory first: a rank that receives the sockets' shutdown message has all that was sent.
  bool leave(Deadline deadline) {
    if (memory_) {
      memory_->leave(deadline);
      const bool done = wait_at(At::Memory, deadline, [&] {
        mailbox_.throw_if_failed();
        return memory_->settled();
      });
      if (!done) return false;
    }
    sockets_.now(zeromq::Leave{});
    return true;
  }

  void stop(const Failure& failure) { sockets_.post(failure); }

  [[nodiscard]] std::vector<SharedBytes> shared_bytes() const {
    return memory_ ? memory_->shared_bytes() : std::vector<SharedBytes>();
  }

  /// Where messages of `from` arrive, which may change in the meantime.
  template <class Done>
  bool wait(Deadline deadline, const Done& done, std::optional<Rank> from = {}) {
    while (from && memory_) {
      const int introduced = memory_->introductions();
      if (memory_->receives_from(*from)) return wait_at(At::Memory, deadline, done);
      bool is_done = false;
      const bool changed = wait_at(At::Sockets, deadline, [&] {
        is_done = done();
        return is_done || memory_->introductions() != introduced;
      });
      if (is_done || !changed) return is_done;
    }
    return wait_at(At::Sockets, deadline, done);
  }

  /// Ends the wait of the rank's thread, unless that thread calls.
  void end_wait() {
    const std::lock_guard lock(where_mutex_);
    if (where_ == At::Work || waiting_ == std::this_thread::get_id()) return;
    if (where_ == At::Memory)
      memory_->wake_up();
    else
      sockets_.post(zeromq::Question{options_.rank, 0});
  }

 private:
  enum class At : std::uint8_t { Work, Sockets, Memory };

  /// Of the rank's thread.
  class Stay {
   public:
    Stay(MixedLink& link, At where) : link_(link) { link_.go(where); }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;
    ~Stay() { link_.go(At::Work); }

   private:
    MixedLink& link_;
  };

  void go(At where) {
    const std::lock_guard lock(where_mutex_);
    where_ = where;
    waiting_ = std::this_thread::get_id();
  }

  template <class Done>
  bool wait_at(At where, Deadline deadline, const Done& done) {
    if (!memory_) return sockets_.wait(deadline, done);
    const Stay stay(*this, where);
    return where == At::Memory ? memory_->wait(deadline, done) : sockets_.wait(deadline, done);
  }

  std::string share(ListeningSocket socket,
                    const std::vector<SocketAddresses>& addresses,
                    const ProgressSlot& slot) {
    const std::vector<Rank> ranks = local_ranks(options_, addresses);
    if (ranks.empty())
      return names_of({options_.rank}) + " shares its host with no other: all over tcp";
    std::vector<std::string> paths;
    for (const SocketAddresses& each : addresses) paths.push_back(each.memory);
    SharedMemoryOptions options;
    static_cast<LinkOptions&>(options) = options_;
    const auto stop = [this](FailureCause cause, const std::string& text) {
      sockets_.post(Failure{cause, text});
    };
    try {
      memory_.emplace(options,
                      mailbox_,
                      slot,
                      std::move(socket),
                      std::move(paths),
                      shared_memory::Carrying{ranks, stop, [this] { end_wait(); }});
    } catch (const TransportError& error) {
      return fmt::format("{} shares no memory: {}", names_of({options_.rank}), error.what());
    }
    return describe(ranks);
  }

  std::string describe(const std::vector<Rank>& ranks) {
    const std::vector<Rank> reached = memory_->reached();
    std::vector<Rank> missed;
    for (const Rank each : ranks)
      if (std::ranges::find(reached, each) == reached.end()) missed.push_back(each);
    std::string text = names_of({options_.rank});
    if (!reached.empty()) text += " shares memory with " + names_of(reached);
    if (!missed.empty())
      text += fmt::format("{} does not reach {} of its host there, and sends to {} over tcp",
                          reached.empty() ? "" : ", but",
                          names_of(missed),
                          missed.size() == 1 ? "it" : "them");
    return text;
  }

  const ZeroMqOptions options_;
  Mailbox& mailbox_;
  std::mutex where_mutex_;  // guards where_ and waiting_
  At where_ = At::Work;
  std::thread::id waiting_;
  std::string connections_;
  SocketLoop sockets_;
  std::optional<RegionLoop> memory_;
};

}  // namespace

struct ZeroMqListener::Parts {
  ZeroMqOptions options;
  std::unique_ptr<ProgressSlot> slot;
  zeromq::Listeners listeners;
  PeerAddress address;
  std::shared_ptr<ZeroMqContext> context;
  ListeningSocket memory;
  std::string connections;
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
  const std::string name = fmt::format("r{}.{}", options.rank.value, options.epoch);
  zeromq::SocketAddresses at;
  zeromq::Listeners& listeners = parts_->listeners;
  listeners.data = zeromq::listen(inside.context, options, domain, name + ".data", at.data);
  listeners.files[0] = zeromq::file_of(at.data);
  listeners.control =
      zeromq::listen(inside.context, options, domain, name + ".control", at.control);
  listeners.files[1] = zeromq::file_of(at.control);
  listeners.context = context;
  if (!options.local_group.empty() && options.world > 1) {
    at.local_group = options.local_group;
    at.memory = shared_memory::nameless_socket();
    parts_->memory = ListeningSocket(at.memory, std::max(kLeastBacklog, 4 * options.world));
  }
  parts_->address = zeromq::peer_address(at);
  parts_->context = std::move(context);
}

ZeroMqListener::~ZeroMqListener() = default;

const Membership& ZeroMqListener::member() const {
  return parts_->options;
}

PeerAddress ZeroMqListener::address() const {
  return parts_->address;
}

std::unique_ptr<RendezvousChannel> ZeroMqListener::rendezvous_channel(const std::string& url,
                                                                      std::size_t longest_note) {
  return zeromq::make_rendezvous_channel(url, longest_note, parts_->options, parts_->context);
}

std::unique_ptr<Endpoint> ZeroMqListener::open(const std::vector<PeerAddress>& addresses) {
  require(!std::exchange(parts_->open, true), "this listener was opened before");
  check_addresses(addresses, parts_->options.world);
  std::vector<SocketAddresses> sockets;
  for (const PeerAddress& address : addresses) sockets.push_back(zeromq::socket_addresses(address));
  auto endpoint = std::make_unique<LinkedEndpoint<MixedLink>>(parts_->options,
                                                              std::move(parts_->slot),
                                                              std::move(parts_->listeners),
                                                              std::move(parts_->memory),
                                                              sockets);
  parts_->connections = endpoint->link().connections();
  return endpoint;
}

std::string ZeroMqListener::connections() const {
  return parts_->connections;
}

std::vector<std::unique_ptr<Endpoint>> zeromq_mesh(const ZeroMqOptions& options, int neighbours) {
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
    if (neighbours > 0) own.local_group = "host " + std::to_string(i / neighbours);
    if (!keys.empty()) own.keys = {keys[static_cast<std::size_t>(i)], public_keys};
    listeners.push_back(std::make_unique<ZeroMqListener>(own, context));
    addresses.push_back(listeners.back()->address());
  }
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (const auto& listener : listeners) endpoints.push_back(listener->open(addresses));
  return endpoints;
}

}  // namespace millrace
