// See zeromq.hpp.
#include "cli/ranks/zeromq.hpp"

#include <filesystem>

#include "cli/ranks/core_dumps.hpp"
#include "cli/ranks/keys.hpp"
#include "millrace/core/error.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace::cli {

namespace {

/// This rank's file where the folder that millrace keys made was named: the same words for all
/// ranks.
std::string key_file(const std::string& path, Rank rank) {
  if (!std::filesystem::is_directory(path)) return path;
  return path + "/keys-" + std::to_string(rank.value);
}

ZeroMqOptions options_of(const LinkFlags& flags, const RankPlace& place) {
  ZeroMqOptions options;
  options.link = flags.link == "ipc" ? ZeroMqLink::Ipc : ZeroMqLink::Tcp;
  options.interface = flags.interface;
  options.insecure = flags.insecure;
  options.silence = milliseconds(flags.silence);
  if (flags.hang) options.hang = milliseconds(*flags.hang);
  options.rank = place.member.rank;
  options.world = place.member.world;
  options.job = place.member.job;
  options.epoch = place.member.epoch;
  options.depths = place.depths;
  return options;
}

/// Where the others of this machine are, or keys that nobody else has where there are none.
void find_place(ZeroMqOptions& options, const std::string& rendezvous) {
  const bool ipc = rendezvous.starts_with("ipc://");
  if (options.world == 1 && options.link == ZeroMqLink::Ipc) {
    options.link = ZeroMqLink::Tcp;
    options.keys.own = make_curve_keys();
    options.keys.public_keys = {options.keys.own.public_key};
  } else if (ipc) {
    options.directory = rendezvous.substr(6, rendezvous.rfind('/') - 6);
  }
  require(
      options.world == 1 || options.link == ZeroMqLink::Tcp || ipc,
      "--endpoint ipc: ranks of one machine meet at ipc://directory/name, but --rendezvous is " +
          rendezvous);
}

}  // namespace

std::unique_ptr<Listener> zeromq_listener(const LinkFlags& flags, const RankPlace& place) {
  ZeroMqOptions options = options_of(flags, place);
  require(place.keys.empty() || !options.insecure,
          "--keys and --insecure: with keys nobody else can read or change the training, without "
          "them everybody can; give one of the two");
  find_place(options, place.rendezvous);
  if (!place.keys.empty()) {
    keep_out_of_dumps(flags.core_dumps);
    options.keys = read_key_file(key_file(place.keys, options.rank), options.rank, options.world);
  }
  require(flags.link == "ipc" || options.insecure || !place.keys.empty(),
          "--endpoint tcp: give --keys FILE (millrace keys makes them), or --insecure");
  return std::make_unique<ZeroMqListener>(options, std::make_shared<ZeroMqContext>());
}

}  // namespace millrace::cli
