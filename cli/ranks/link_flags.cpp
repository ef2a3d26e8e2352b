#include "cli/ranks/link_flags.hpp"

#include <cmath>
#include <utility>

#include "cli/numbers.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

void add_link_flags(CLI::App& subcommand, LinkFlags& flags) {
  subcommand
      .add_option("--endpoint",
                  flags.link,
                  "auto; shm (shared memory), ipc, tcp with keys, mixed (tcp, and shared memory "
                  "between ranks of one host), or mpi under mpirun")
      ->capture_default_str();
  subcommand.add_option("--interface", flags.interface, "Address to listen on, for tcp")
      ->capture_default_str();
  subcommand
      .add_option("--heartbeat-timeout",
                  flags.heartbeat_timeout,
                  "Seconds without a heartbeat until a rank counts as hung")
      ->capture_default_str();
  subcommand.add_option(
      "--action-timeout",
      flags.action_timeout,
      "Minimum timeout of one action in seconds (default 10; 1.2 after 100 of its kind); slow "
      "actions stretch it");
  subcommand
      .add_option("--join-timeout",
                  flags.join_timeout,
                  "Seconds to wait for the next rank to join, or for a peer's file after a failed "
                  "step")
      ->capture_default_str();
  subcommand.add_flag("--insecure", flags.insecure, "tcp without keys");
  subcommand.add_flag("--core-dumps",
                      flags.core_dumps,
                      "Let processes that hold secret keys leave core dumps, which hold them too");
}

void check(const LinkFlags& flags) {
  static_cast<void>(chosen_backend(flags.link, {}));
  require(uses_tcp(flags) || !flags.insecure,
          "--insecure: only tcp has keys that could be left out; --endpoint is " + flags.link);
  require(uses_tcp(flags) || flags.interface == LinkFlags().interface,
          "--interface " + flags.interface + ": only tcp listens at addresses; --endpoint is " +
              flags.link);
  for (const auto& [name, value] : {std::pair{"--heartbeat-timeout", flags.heartbeat_timeout},
                                    std::pair{"--action-timeout", flags.action_timeout.value_or(1)},
                                    std::pair{"--join-timeout", flags.join_timeout}})
    require(value >= 0.001 && value <= 1e6,
            std::string(name) + " " + plain(value) + ": must be from 0.001 to 1000000 seconds");
}

bool uses_tcp(const LinkFlags& flags) {
  return flags.link != "auto" && uses_tcp(backend_of(flags.link));
}

LaunchConfig place_of(const LinkFlags& flags) {
  LaunchConfig place;
  if (flags.link != "auto") place.backend = backend_of(flags.link);
  place.interface = flags.interface;
  place.insecure = flags.insecure;
  place.core_dumps = flags.core_dumps;
  place.heartbeat_timeout = milliseconds(flags.heartbeat_timeout);
  place.join_timeout = milliseconds(flags.join_timeout);
  if (flags.action_timeout) place.action_timeout = milliseconds(*flags.action_timeout);
  return place;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(std::llround(1000 * seconds));
}

}  // namespace millrace::cli
