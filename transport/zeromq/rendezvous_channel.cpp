// The rendezvous channel over ZeroMQ sockets.
#include <cerrno>
#include <deque>
#include <map>
#include <utility>

#include "transport/rendezvous/hello.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/backend.hpp"
#include "transport/zeromq/context.hpp"
#include "transport/zeromq/sockets.hpp"

namespace millrace::zeromq {

namespace {

constexpr int kLastNoteMs = 2000;
constexpr int kMostRanks = 1 << 16;
constexpr std::size_t kMostPeers = 4;  // with one rank

/// "r1" of "r1-5e0c": every peer has a word of its own, since a socket drops the second of two
/// peers with one name without an error.
std::string_view name_of_rank(std::string_view identity) {
  return identity.substr(0, identity.find('-'));
}

/// Rank 0 receives from all others; every other rank from rank 0.
class ZeroMqChannel final : public RendezvousChannel {
 public:
  ZeroMqChannel(const std::string& url,
                std::size_t longest_note,
                ZeroMqOptions options,
                std::shared_ptr<ZeroMqContext> context)
      : options_(std::move(options)), context_(std::move(context)) {
    const MeetingPlace place = meeting_place(url);
    check_reachable(place, options_);
    if (place.ipc) options_.link = ZeroMqLink::Ipc;
    options_.largest_payload = longest_note;
    is_host() ? listen(url, place) : dial(url);
  }

  /// Rank 0 sends to all that say to be the rank.
  void send(Rank to, std::span<const std::byte> header, std::string_view text) override {
    if (!is_host()) return send_to({}, header, text);
    for (const std::string& peer : peers_[to.value]) send_to(peer, header, text);
  }

  std::optional<RendezvousMessage> receive(std::chrono::milliseconds longest) override {
    zmq::pollitem_t item{socket_.handle(), 0, ZMQ_POLLIN, 0};
    // Or a signal came.
    if (zmq_poll(&item, 1, static_cast<long>(longest.count())) <= 0) return std::nullopt;
    std::vector<zmq::message_t> parts;
    do {
      parts.emplace_back();
      if (!receive_part(socket_, parts.back())) return std::nullopt;
    } while (parts.back().more());
    if (parts.size() != (is_host() ? 3U : 2U)) return std::nullopt;
    const std::string_view name = parts.front().to_string_view();
    const int from = is_host() ? rank_of(name_of_rank(name), kMostRanks) : 0;
    if (from < 0 || (is_host() && !speaks_for_itself(parts))) return std::nullopt;
    if (is_host()) remember(peers_[from], std::string(name));
    const zmq::message_t& header = parts[parts.size() - 2];
    const auto* bytes = header.data<std::byte>();
    return RendezvousMessage{Rank{from}, {bytes, bytes + header.size()}, parts.back().to_string()};
  }

  [[nodiscard]] bool keyed() const override {
    return options_.link == ZeroMqLink::Tcp && !options_.insecure;
  }

 private:
  [[nodiscard]] bool is_host() const { return options_.rank == Rank{0}; }

  static void remember(std::deque<std::string>& peers, std::string name) {
    std::erase(peers, name);
    peers.push_back(std::move(name));
    if (peers.size() > kMostPeers) peers.pop_front();
  }

  void send_to(const std::string& peer, std::span<const std::byte> header, std::string_view text) {
    try {
      zmq::message_t name(peer);
      if (is_host() && !send_part(socket_, name, true)) return;
      zmq::message_t head(header.data(), header.size());
      zmq::message_t body(text);
      // A connection that was refused for good has no place for another word.
      if (send_part(socket_, head, true)) send_part(socket_, body, false);
    } catch (const zmq::error_t&) {
      if (!is_host()) throw;
      // Gone since its hello: the endpoints will find it lost and say so with its rank.
    }
  }

  void listen(const std::string& url, const MeetingPlace& place) {
    const std::string domain = context_->parts().new_domain();
    context_->parts().admit(domain, options_.keys.public_keys);
    socket_ = make_listener(context_->parts().context, options_, domain);
    socket_.set(zmq::sockopt::linger, kLastNoteMs);
    try {
      place.ipc ? bind_ipc(socket_, place.path) : socket_.bind(address_to_bind(place));
    } catch (const zmq::error_t& error) {
      throw TransportError("rank 0 cannot listen at " + url + ": " + error.what() +
                           (error.num() == EADDRINUSE ? "; is another process rank 0, too?" : ""));
    }
    file_ = file_of(place.ipc ? url : std::string());
  }

  void dial(const std::string& url) {
    socket_ = make_dialer(context_->parts().context, options_, Rank{0}, 0);
    // Before the connection, or they are ignored.
    socket_.set(zmq::sockopt::routing_id, identity_of(options_.rank) + "-" + unique_word());
    socket_.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(options_.largest_payload));
    connect(socket_, Rank{0}, url);
  }

  [[nodiscard]] bool speaks_for_itself(std::vector<zmq::message_t>& parts) const {
    if (!keyed()) return true;
    try {
      return name_of_rank(parts.front().to_string_view()) == parts[1].gets("User-Id");
    } catch (const zmq::error_t&) {
      return false;
    }
  }

  ZeroMqOptions options_;
  std::shared_ptr<ZeroMqContext> context_;
  SocketFile file_;
  zmq::socket_t socket_;
  std::map<int, std::deque<std::string>> peers_;  // rank 0: by rank, the last heard last
};

}  // namespace

std::unique_ptr<RendezvousChannel> make_rendezvous_channel(const std::string& url,
                                                           std::size_t longest_note,
                                                           ZeroMqOptions options,
                                                           std::shared_ptr<ZeroMqContext> context) {
  return std::make_unique<ZeroMqChannel>(url, longest_note, std::move(options), std::move(context));
}

}  // namespace millrace::zeromq
