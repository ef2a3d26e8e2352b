// The hub, and a rank of it that the others do not know yet.
#include <charconv>
#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "millrace/transport/in_process.hpp"
#include "transport/in_process/backend.hpp"
#include "transport/link/endpoint.hpp"

namespace millrace {

namespace {

using namespace in_process;

constexpr std::string_view kScheme = "in-process:";

PeerAddress address_of(Rank rank) {
  return {fmt::format("{}{}", kScheme, rank.value)};
}

Rank rank_at(const PeerAddress& address) {
  Rank rank;
  const char* const end = address.text.data() + address.text.size();
  const bool ours = address.text.starts_with(kScheme);
  const auto read =
      std::from_chars(ours ? address.text.data() + kScheme.size() : end, end, rank.value);
  if (read.ec != std::errc() || read.ptr != end)
    throw TransportError("'" + address.text + "' is not the address of an in-process endpoint");
  return rank;
}

class InProcessListener final : public Listener {
 public:
  InProcessListener(std::shared_ptr<Hub> hub, Rank rank)
      : hub_(std::move(hub)), member_{.rank = rank, .world = hub_->world} {}

  [[nodiscard]] const Membership& member() const override { return member_; }
  [[nodiscard]] PeerAddress address() const override { return address_of(member_.rank); }

  [[nodiscard]] std::unique_ptr<RendezvousChannel> rendezvous_channel(
      const std::string& url, std::size_t /*longest_note*/) override {
    return make_rendezvous_channel(hub_, member_.rank, url);
  }

  [[nodiscard]] std::unique_ptr<Endpoint> open(const std::vector<PeerAddress>& addresses) override {
    require(!std::exchange(open_, true), "this listener was opened before");
    check_addresses(addresses, member_.world);
    for (int i = 0; i < member_.world; ++i)
      if (const Rank found = rank_at(addresses[static_cast<std::size_t>(i)]); found != Rank{i})
        throw TransportError(
            fmt::format("the address of rank {} is that of rank {}", i, found.value));
    return make_endpoint(hub_, member_.rank);
  }

 private:
  std::shared_ptr<Hub> hub_;
  Membership member_;
  bool open_ = false;
};

void take(Hub& hub, Rank rank) {
  hub.require_rank(rank, "the endpoint");
  require(!hub.taken[rank.index()],
          fmt::format("the endpoint of rank {} was taken before", rank.value));
  hub.taken[rank.index()] = true;
}

}  // namespace

struct InProcessHub::Shared : Hub {
  using Hub::Hub;
};

InProcessHub::InProcessHub(int world, std::span<const ChannelDepth> depths) {
  require(world >= 1, fmt::format("world is {}; it has at least 1 rank", world));
  shared_ = std::make_shared<Shared>(world);
  for (const ChannelDepth& channel : depths) {
    shared_->require_rank(channel.source, "a channel's source");
    shared_->require_rank(channel.destination, "a channel's destination");
    require(channel.depth >= 1,
            fmt::format("a channel's depth is {}; it is at least 1", channel.depth));
    shared_->arrivals[channel.destination.index()]
        .channels[channel.source.index()][index_of(channel.direction)]
        .set_depth(channel.depth);
  }
}

InProcessHub::~InProcessHub() = default;

std::unique_ptr<Listener> InProcessHub::listener(Rank rank) {
  take(*shared_, rank);
  return std::make_unique<InProcessListener>(shared_, rank);
}

std::unique_ptr<Endpoint> InProcessHub::endpoint(Rank rank) {
  take(*shared_, rank);
  return make_endpoint(shared_, rank);
}

}  // namespace millrace
