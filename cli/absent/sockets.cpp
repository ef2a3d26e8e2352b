// A build without ZeroMQ: ranks are processes of one host, over shared memory.
#include "cli/ranks/sockets.hpp"

#include <iostream>
#include <string>
#include <vector>

#include "cli/exit_codes.hpp"
#include "cli/subcommands.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

constexpr const char* kMissing =
    "this build is without its component zeromq, which connects several machines; install ZeroMQ "
    "(Debian: libzmq3-dev, cppzmq-dev) and build with MILLRACE_WITH_ZEROMQ=ON";

}  // namespace

void make_keys(const std::string& /*directory*/, int /*ranks*/) {
  throw Error(kMissing);
}

/// Two sockets, the doorbell and the process of every other rank, and the rank's own.
std::size_t most_descriptors(int world) {
  return 4 * static_cast<std::size_t>(world) + 24;
}

std::vector<Check> socket_checks(const std::string& /*interface*/, const std::string& rendezvous) {
  require(rendezvous.empty(), std::string("--rendezvous ") + rendezvous + ": " + kMissing);
  return {};
}

void add_keys(CLI::App& app) {
  CLI::App* subcommand = app.add_subcommand(
      "keys", "Make keys for ranks on several machines (not in this build: needs ZeroMQ)");
  subcommand->allow_extras();
  subcommand->prefix_command();  // every option is accepted
  subcommand->callback([] {
    std::cerr << "millrace: keys: " << kMissing << '\n';
    throw ExitCode{kNotBuilt};
  });
}

}  // namespace millrace::cli
