// Addresses and keys of ranks that a launcher started on several hosts.
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "millrace/core/error.hpp"
#include "transport/shared_memory/backend.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/backend.hpp"

namespace millrace::zeromq {

namespace {

using namespace std::chrono_literals;

constexpr auto kLook = 50ms;  // also on file systems between machines
constexpr int kPortsTried = 100;

std::string meeting_file(const std::string& folder) {
  return folder + "/meeting";
}

/// Complete from the moment at which it has its name.
void leave_address(const std::string& folder, const std::string& url) {
  const std::string aside = meeting_file(folder) + ".new";
  {
    std::ofstream file(aside);
    file << url << std::flush;
    if (!file) throw TransportError("cannot write " + aside);
  }
  std::filesystem::rename(aside, meeting_file(folder));
}

/// The node's own, where its name is one of this machine; else this machine's.
std::string address_of_first(const MeetingPlace& asked) {
  if (const std::string number = resolve_ipv4(asked.host); is_own_address(number)) return number;
  std::string name(256, '\0');
  if (::gethostname(name.data(), name.size() - 1) == 0)
    if (const std::string number = resolve_ipv4(name.c_str()); is_own_address(number))
      return number;
  throw TransportError("rank 0 finds no address of its own: neither the first node, " + asked.host +
                       ", nor this machine's name is one");
}

/// A rendezvous in a folder that all ranks see, where the launcher has prepared nothing else: rank
/// 0 makes keys and leaves them there with the address at which it listens, readable by this user
/// alone, until all have met. Thread-safety: thread-affine.
class FolderRendezvous {
 public:
  /// Without LaunchConfig::shared, `asked` as it is. Else rank 0 makes the folder, the others wait
  /// for it. Throws TransportError when it cannot be made or there is no address, PeerHangs when it
  /// does not come within the join timeout.
  explicit FolderRendezvous(const LaunchConfig& asked);
  FolderRendezvous(const FolderRendezvous&) = delete;
  FolderRendezvous& operator=(const FolderRendezvous&) = delete;
  /// Rank 0 removes the folder.
  ~FolderRendezvous();

  [[nodiscard]] const LaunchConfig& place() const { return place_; }

 private:
  void make();
  void await();

  LaunchConfig place_;
  bool made_ = false;
};

FolderRendezvous::FolderRendezvous(const LaunchConfig& asked) : place_(asked) {
  if (place_.shared.empty() || place_.member.world == 1) return;
  if (place_.member.rank == Rank{0})
    make();
  else
    await();
  place_.keys = place_.shared;
}

FolderRendezvous::~FolderRendezvous() {
  std::error_code ignored;
  if (made_) std::filesystem::remove_all(place_.shared, ignored);
}

void FolderRendezvous::make() {
  const MeetingPlace asked = meeting_place(place_.rendezvous);
  const std::string host = address_of_first(asked);
  int port = asked.port;
  while (!is_free(host, port))
    if (++port == asked.port + kPortsTried)
      throw TransportError(
          fmt::format("rank 0 cannot listen at {}: none of {} ports from {} on is free",
                      host,
                      kPortsTried,
                      asked.port));
  // What lies there was left by a run of the same number that was killed.
  std::error_code ignored;
  std::filesystem::remove_all(place_.shared, ignored);
  if (::mkdir(place_.shared.c_str(), 0700) != 0)
    throw TransportError(
        "rank 0 cannot make " + place_.shared +
        ", where the ranks find their keys: " + std::generic_category().message(errno));
  made_ = true;
  static_cast<void>(write_key_files(place_.shared, place_.member.world));
  place_.rendezvous = fmt::format("tcp://{}:{}", host, port);
  leave_address(place_.shared, place_.rendezvous);
}

void FolderRendezvous::await() {
  const auto end = std::chrono::steady_clock::now() + place_.join_timeout;
  for (;;) {
    std::ifstream file(meeting_file(place_.shared));
    if (std::getline(file, place_.rendezvous)) return;
    if (std::chrono::steady_clock::now() > end)
      throw PeerHangs("rank 0 has left no keys and address in " + place_.shared +
                      "; is that folder the same on all nodes?");
    std::this_thread::sleep_for(kLook);
  }
}

/// A launcher may name rank 0's machine later than it starts this rank.
std::string interface_of(const LaunchConfig& place, ZeroMqLink link) {
  if (place.interface != "auto") return place.interface;
  const bool tcp = place.rendezvous.starts_with("tcp://");
  if (link != ZeroMqLink::Tcp || !tcp) return "127.0.0.1";
  const std::string host = meeting_place(place.rendezvous).host;
  const auto end = std::chrono::steady_clock::now() + place.join_timeout;
  for (;;) {
    try {
      return address_towards(host);
    } catch (const TransportError&) {
      if (std::chrono::steady_clock::now() > end) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

ZeroMqOptions socket_options(const LaunchConfig& place, const std::vector<ChannelDepth>& depths) {
  auto options = link_options<ZeroMqOptions>(place, depths);
  options.link = place.backend == Backend::Ipc ? ZeroMqLink::Ipc : ZeroMqLink::Tcp;
  options.interface = interface_of(place, options.link);
  if (place.backend == Backend::Mixed) options.local_group = shared_memory::local_group();
  options.insecure = place.insecure;
  return options;
}

/// The folder of the other ranks of this machine; new keys without other ranks.
void find_local_ranks(ZeroMqOptions& options, const std::string& rendezvous) {
  const bool ipc = rendezvous.starts_with("ipc://");
  if (options.world == 1 && options.link == ZeroMqLink::Ipc) {
    options.link = ZeroMqLink::Tcp;
    options.keys.own = make_curve_keys();
    options.keys.public_keys = {options.keys.own.public_key};
  } else if (ipc) {
    options.directory = rendezvous.substr(6, rendezvous.rfind('/') - 6);
  }
  require(options.world == 1 || options.link == ZeroMqLink::Tcp || ipc,
          named("endpoint") + " ipc: ranks of one machine meet at ipc://directory/name, but " +
              named("rendezvous") + " is " + rendezvous);
}

/// Before the first secret is read: nothing can wipe the network library's copies of it.
void keep_secrets_in(const LaunchConfig& place) {
  if (!place.core_dumps) ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

CurveRing keys_of(const LaunchConfig& place) {
  keep_secrets_in(place);
  const auto [rank, world, job, epoch] = place.member;
  return place.keys_descriptor >= 0 ? read_keys(place.keys_descriptor, rank, world)
                                    : read_key_file(place.keys, rank, world);
}

ZeroMqOptions zeromq_options(const LaunchConfig& place, const std::vector<ChannelDepth>& depths) {
  const bool keyed = !place.keys.empty() || place.keys_descriptor >= 0;
  ZeroMqOptions options = socket_options(place, depths);
  const bool tcp = options.link == ZeroMqLink::Tcp;
  require(!keyed || !options.insecure,
          named("keys") + " and " + named("insecure") +
              ": with keys no other process can read or change the training, without them any can; "
              "give one of the two");
  find_local_ranks(options, place.rendezvous);
  if (keyed) options.keys = keys_of(place);
  require(!tcp || options.insecure || keyed,
          named("endpoint") + " tcp: give " + named("keys") +
              " FILE (millrace keys makes them), or " + named("insecure"));
  return options;
}

}  // namespace

Launched launched(const LaunchConfig& config, const std::vector<ChannelDepth>& depths) {
  const auto folder = std::make_shared<const FolderRendezvous>(config);
  const LaunchConfig& place = folder->place();
  return {.until_met = folder,
          .listener = std::make_unique<ZeroMqListener>(zeromq_options(place, depths),
                                                       std::make_shared<ZeroMqContext>()),
          .url = place.rendezvous};
}

}  // namespace millrace::zeromq
