#include "transport/zeromq/launched.hpp"

#include <sys/prctl.h>
#include <thread>

#include "millrace/core/error.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/shared_memory/neighbourhood.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/folder_rendezvous.hpp"

namespace millrace::zeromq {

namespace {

/// An engine may give rank 0's machine its name later than it starts this one.
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
  options.link = place.endpoint == "ipc" ? ZeroMqLink::Ipc : ZeroMqLink::Tcp;
  options.interface = interface_of(place, options.link);
  if (place.endpoint == "mixed") options.neighbourhood = shared_memory::neighbourhood();
  options.insecure = place.insecure;
  return options;
}

/// Where the others of this machine are, or keys that nobody else has where there are none.
void find_neighbours(ZeroMqOptions& options, const std::string& rendezvous) {
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

/// Before the first secret is read; the network library's copies of it can be wiped by nobody.
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
              ": with keys nobody else can read or change the training, without them everybody "
              "can; give one of the two");
  find_neighbours(options, place.rendezvous);
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
