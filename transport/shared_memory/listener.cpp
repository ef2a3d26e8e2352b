// A rank that listens: its socket is bound, and its files on this host are held, before any other
// rank knows its address.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <sys/random.h>
#include <unistd.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/transport/private_directory.hpp"
#include "transport/link/endpoint.hpp"
#include "transport/shared_memory/backend.hpp"
#include "transport/shared_memory/region_loop.hpp"

namespace millrace {

namespace {

constexpr std::string_view kScheme = "shm:";
constexpr std::string_view kIpc = "ipc://";
constexpr int kLeastBacklog = 128;

/// Two sockets, the doorbell and the process of every other rank; the rest is the rank's own and
/// what is on its way.
constexpr std::size_t kDescriptorsOfAPeer = 4;
constexpr std::size_t kDescriptorsOfItself = 24;

void check(const SharedMemoryOptions& options) {
  check_member(options);
  if (options.world == 1 && options.directory.empty()) return;
  PrivateDirectory::check(options.directory);
  if (const auto problem = shared_memory_problem())
    throw TransportError("these ranks cannot share memory: " + *problem);
  check_descriptors(
      options.world,
      kDescriptorsOfAPeer * static_cast<std::size_t>(options.world - 1) + kDescriptorsOfItself);
}

/// The socket in the private directory at which a rank gives its memory away.
PeerAddress address_of(const std::string& socket) {
  require(socket.find('\n') == std::string::npos,
          "the path " + socket + " has a line break in it, which an address cannot");
  return {std::string(kScheme) + socket};
}

std::string socket_at(const PeerAddress& address) {
  if (!address.text.starts_with(kScheme))
    throw TransportError("'" + address.text + "' is not the address of a shared-memory endpoint");
  return address.text.substr(kScheme.size());
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
    parts_->address = address_of("");
    return;
  }
  parts_->slot = std::make_unique<ProgressSlot>(
      shared_memory::file_of_rank(options, options.rank, "progress"));
  const std::string path = shared_memory::file_of_rank(options, options.rank, "shm");
  parts_->address = address_of(path);
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
  check_addresses(addresses, parts_->options.world);
  std::vector<std::string> sockets;
  for (const PeerAddress& address : addresses) sockets.push_back(socket_at(address));
  return std::make_unique<LinkedEndpoint<shared_memory::RegionLoop>>(
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

namespace shared_memory {

std::string rendezvous_path(const std::string& url) {
  require(url.starts_with(kIpc) && url.size() > kIpc.size(),
          "'" + url + "' is not a rendezvous of ranks that share memory: ipc://path");
  return url.substr(kIpc.size());
}

std::string file_of_rank(const SharedMemoryOptions& options, Rank rank, const char* what) {
  return fmt::format("{}/r{}.{}.{}", options.directory, rank.value, options.epoch, what);
}

Launched launched(const LaunchConfig& config, const std::vector<ChannelDepth>& depths) {
  const std::string& url = config.rendezvous;
  const bool ipc = url.starts_with(kIpc);
  require(config.member.world == 1 || ipc,
          named("endpoint") + " shm: ranks of one machine meet at ipc://directory/name, but " +
              named("rendezvous") + " is " + url);
  auto options = link_options<SharedMemoryOptions>(config, depths);
  if (ipc) options.directory = url.substr(kIpc.size(), url.rfind('/') - kIpc.size());
  return {.listener = std::make_unique<SharedMemoryListener>(options), .url = url};
}

std::string local_group() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string system;
  if (!(file >> system) || shared_memory_problem()) return {};
  return fmt::format("{}/{}", system, ::geteuid());
}

std::string nameless_socket() {
  std::array<unsigned char, 16> random{};
  if (::getentropy(random.data(), random.size()) != 0) refuse("name a socket");
  return fmt::format("{}millrace-{:02x}", kNameless, fmt::join(random, ""));
}

}  // namespace shared_memory

}  // namespace millrace
