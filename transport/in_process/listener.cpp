// The hub, and a rank of it that the others do not know yet.
#include <utility>

#include "millrace/transport/in_process.hpp"
#include "transport/in_process/address.hpp"
#include "transport/in_process/endpoint.hpp"
#include "transport/in_process/hub.hpp"
#include "transport/in_process/rendezvous_channel.hpp"

namespace millrace {

namespace {

using namespace in_process;

class InProcessListener final : public Listener {
 public:
  InProcessListener(std::shared_ptr<Hub> hub, Rank rank)
      : hub_(std::move(hub)), member_{.rank = rank, .world = hub_->world} {}

  [[nodiscard]] const Membership& member() const override { return member_; }
  [[nodiscard]] PeerAddress address() const override { return peer_address(member_.rank); }

  [[nodiscard]] std::unique_ptr<RendezvousChannel> rendezvous_channel(
      const std::string& url, std::size_t /*longest_note*/) override {
    return make_rendezvous_channel(hub_, member_.rank, url);
  }

  [[nodiscard]] std::unique_ptr<Endpoint> open(const std::vector<PeerAddress>& addresses) override {
    require(!std::exchange(open_, true), "this listener was opened before");
    require(addresses.size() == static_cast<std::size_t>(member_.world),
            "there are " + std::to_string(addresses.size()) + " addresses for " +
                std::to_string(member_.world) + " ranks");
    for (int i = 0; i < member_.world; ++i)
      if (const Rank found = rank_at(addresses[static_cast<std::size_t>(i)]); found != Rank{i})
        throw TransportError("the address of rank " + std::to_string(i) + " is that of rank " +
                             std::to_string(found.value));
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
          "the endpoint of rank " + std::to_string(rank.value) + " was taken before");
  hub.taken[rank.index()] = true;
}

}  // namespace

struct InProcessHub::Shared : Hub {
  using Hub::Hub;
};

InProcessHub::InProcessHub(int world, std::span<const ChannelDepth> depths) {
  require(world >= 1, "world is " + std::to_string(world) + "; it has at least 1 rank");
  shared_ = std::make_shared<Shared>(world);
  for (const ChannelDepth& channel : depths) {
    shared_->require_rank(channel.source, "a channel's source");
    shared_->require_rank(channel.destination, "a channel's destination");
    require(channel.depth >= 1,
            "a channel's depth is " + std::to_string(channel.depth) + "; it is at least 1");
    shared_->mailboxes[channel.destination.index()]
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
