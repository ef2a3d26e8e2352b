#include "cli/ranks/link_flags.hpp"

#include <cmath>
#include <utility>

#include "cli/numbers.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

void add_link_flags(CLI::App& verb, LinkFlags& flags) {
  verb.add_option("--endpoint",
                  flags.link,
                  "auto; shm (shared memory), ipc, tcp with keys, mixed (tcp, and shared memory "
                  "between ranks of one host), or mpi under mpirun")
      ->capture_default_str();
  verb.add_option("--interface", flags.interface, "Address to listen on, for tcp")
      ->capture_default_str();
  verb.add_option("--silence", flags.silence, "Seconds without a word until a rank counts as hung")
      ->capture_default_str();
  verb.add_option(
      "--hang",
      flags.hang,
      "Least seconds of one action until its rank counts as hung; without it 10, and 1.2 "
      "when a hundred of its kind have ended; stretches to what is usual of its kind");
  verb.add_option("--patience",
                  flags.patience,
                  "Seconds until all ranks must have met, and until the next file of another must "
                  "come that saves after a step that failed")
      ->capture_default_str();
  verb.add_flag("--insecure", flags.insecure, "tcp without keys");
  verb.add_flag("--core-dumps",
                flags.core_dumps,
                "Let processes that hold secret keys leave core dumps, which hold them too");
}

void check(const LinkFlags& flags) {
  static_cast<void>(chosen_endpoint(flags.link, {}));
  require(speaks_tcp(flags.link) || !flags.insecure,
          "--insecure: only tcp has keys that could be left out; --endpoint is " + flags.link);
  require(speaks_tcp(flags.link) || flags.interface == LinkFlags().interface,
          "--interface " + flags.interface + ": only tcp listens at addresses; --endpoint is " +
              flags.link);
  for (const auto& [name, value] : {std::pair{"--silence", flags.silence},
                                    std::pair{"--hang", flags.hang.value_or(1)},
                                    std::pair{"--patience", flags.patience}})
    require(value >= 0.001 && value <= 1e6,
            std::string(name) + " " + plain(value) + ": must be from 0.001 to 1000000 seconds");
}

LaunchConfig place_of(const LinkFlags& flags) {
  LaunchConfig place;
  place.endpoint = flags.link;
  place.interface = flags.interface;
  place.insecure = flags.insecure;
  place.core_dumps = flags.core_dumps;
  place.silence = milliseconds(flags.silence);
  place.patience = milliseconds(flags.patience);
  if (flags.hang) place.hang = milliseconds(*flags.hang);
  return place;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(std::llround(1000 * seconds));
}

}  // namespace millrace::cli
