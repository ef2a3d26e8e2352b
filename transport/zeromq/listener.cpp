// A rank that listens: its sockets are bound, and its place on this machine is held, before anybody
// knows where it is.
#include <algorithm>
#include <utility>

#include "transport/shared_memory/neighbourhood.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/endpoint.hpp"
#include "transport/zeromq/rendezvous_channel.hpp"
#include "transport/zeromq/sockets.hpp"

namespace millrace {

namespace {

constexpr int kLeastBacklog = 128;

}  // namespace

struct ZeroMqListener::Parts {
  ZeroMqOptions options;
  std::unique_ptr<ProgressSlot> slot;
  zeromq::Listeners listeners;
  PeerAddress address;
  std::shared_ptr<ZeroMqContext> context;
  shared_memory::ListeningSocket memory;
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
  const std::string name =
      "r" + std::to_string(options.rank.value) + "." + std::to_string(options.epoch);
  zeromq::SocketAddresses at;
  zeromq::Listeners& listeners = parts_->listeners;
  listeners.data = zeromq::listen(inside.context, options, domain, name + ".data", at.data);
  listeners.files[0] = zeromq::file_of(at.data);
  listeners.control =
      zeromq::listen(inside.context, options, domain, name + ".control", at.control);
  listeners.files[1] = zeromq::file_of(at.control);
  listeners.context = context;
  if (!options.neighbourhood.empty() && options.world > 1) {
    at.neighbourhood = options.neighbourhood;
    at.memory = shared_memory::nameless_socket();
    parts_->memory =
        shared_memory::ListeningSocket(at.memory, std::max(kLeastBacklog, 4 * options.world));
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
  std::vector<zeromq::SocketAddresses> sockets;
  for (const PeerAddress& address : addresses) sockets.push_back(zeromq::socket_addresses(address));
  auto [endpoint, connections] = zeromq::make_endpoint(parts_->options,
                                                       std::move(parts_->slot),
                                                       std::move(parts_->listeners),
                                                       std::move(parts_->memory),
                                                       sockets);
  parts_->connections = std::move(connections);
  return std::move(endpoint);
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
    if (neighbours > 0) own.neighbourhood = "host " + std::to_string(i / neighbours);
    if (!keys.empty()) own.keys = {keys[static_cast<std::size_t>(i)], public_keys};
    listeners.push_back(std::make_unique<ZeroMqListener>(own, context));
    addresses.push_back(listeners.back()->address());
  }
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (const auto& listener : listeners) endpoints.push_back(listener->open(addresses));
  return endpoints;
}

}  // namespace millrace
