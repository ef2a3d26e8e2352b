// A rank that listens: its socket is bound, and its place on this host is held, before anybody
// knows where it is.
#include <filesystem>
#include <iterator>
#include <sys/resource.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/transport/private_directory.hpp"
#include "transport/shared_memory/address.hpp"
#include "transport/shared_memory/endpoint.hpp"
#include "transport/shared_memory/rendezvous_channel.hpp"
#include "transport/wire/request.hpp"

namespace millrace {

namespace {

constexpr int kLeastBacklog = 128;

/// Two sockets, the bell and the process of every other rank; the rest is the rank's own and what
/// is on its way.
constexpr std::size_t kDescriptorsOfAPeer = 4;
constexpr std::size_t kDescriptorsOfItself = 24;

void check_open_files(int world) {
  std::error_code unknown;
  const std::filesystem::directory_iterator open("/proc/self/fd", unknown);
  rlimit limit{};
  if (unknown || world == 1 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto needed = kDescriptorsOfAPeer * static_cast<std::size_t>(world - 1) +
                      kDescriptorsOfItself +
                      static_cast<std::size_t>(std::distance(begin(open), end(open)));
  if (needed > limit.rlim_cur)
    throw TransportError("a rank of " + std::to_string(world) + " needs " + std::to_string(needed) +
                         " descriptors, but this process may open only " +
                         std::to_string(limit.rlim_cur));
}

void check(const SharedMemoryOptions& options) {
  check_member(options);
  if (options.world == 1 && options.directory.empty()) return;
  PrivateDirectory::check(options.directory);
  if (const auto problem = shared_memory_problem())
    throw TransportError("these ranks cannot share memory: " + *problem);
  check_open_files(options.world);
}

}  // namespace

struct SharedMemoryListener::Parts {
  SharedMemoryOptions options;
  std::unique_ptr<ProgressSlot> slot;
  shared_memory::ListeningSocket socket;
  PeerAddress address;
  bool open = false;
};

SharedMemoryListener::SharedMemoryListener(const SharedMemoryOptions& options)
    : parts_(std::make_unique<Parts>()) {
  check(options);
  parts_->options = options;
  if (options.directory.empty()) {
    parts_->slot = std::make_unique<ProgressSlot>("");
    parts_->address = shared_memory::peer_address("");
    return;
  }
  parts_->slot = std::make_unique<ProgressSlot>(
      shared_memory::file_of_rank(options, options.rank, "progress"));
  const std::string path = shared_memory::file_of_rank(options, options.rank, "shm");
  parts_->address = shared_memory::peer_address(path);
  parts_->socket = shared_memory::ListeningSocket(path, std::max(kLeastBacklog, 4 * options.world));
}

SharedMemoryListener::~SharedMemoryListener() = default;

const Membership& SharedMemoryListener::member() const {
  return parts_->options;
}

PeerAddress SharedMemoryListener::address() const {
  return parts_->address;
}

std::unique_ptr<RendezvousChannel> SharedMemoryListener::rendezvous_channel(
    const std::string& url, std::size_t longest_note) {
  return shared_memory::make_rendezvous_channel(url, longest_note, parts_->options);
}

std::unique_ptr<Endpoint> SharedMemoryListener::open(const std::vector<PeerAddress>& addresses) {
  require(!std::exchange(parts_->open, true), "this listener was opened before");
  require(addresses.size() == static_cast<std::size_t>(parts_->options.world),
          "there are " + std::to_string(addresses.size()) + " addresses for " +
              std::to_string(parts_->options.world) + " ranks");
  std::vector<std::string> sockets;
  for (const PeerAddress& address : addresses)
    sockets.push_back(shared_memory::socket_path(address));
  return shared_memory::make_endpoint(
      parts_->options, std::move(parts_->slot), std::move(parts_->socket), std::move(sockets));
}

std::vector<std::unique_ptr<Endpoint>> shared_memory_mesh(const SharedMemoryOptions& options) {
  std::vector<std::unique_ptr<SharedMemoryListener>> listeners;
  std::vector<PeerAddress> addresses;
  for (int i = 0; i < options.world; ++i) {
    SharedMemoryOptions own = options;
    own.rank = Rank{i};
    listeners.push_back(std::make_unique<SharedMemoryListener>(own));
    addresses.push_back(listeners.back()->address());
  }
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (const auto& listener : listeners) endpoints.push_back(listener->open(addresses));
  return endpoints;
}

}  // namespace millrace
