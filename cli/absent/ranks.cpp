// The verbs of ranks in processes of their own, in a build without a backend that connects
// processes: each says which component is missing, whatever options it was given.
#include <iostream>
#include <string>
#include <vector>

#include "cli/exit_codes.hpp"
#include "cli/verbs.hpp"

namespace millrace::cli {

namespace {

void add_absent(CLI::App& app, const std::string& name, const std::string& what) {
  CLI::App* verb = app.add_subcommand(name, what + " (not in this build: needs ZeroMQ)");
  verb->allow_extras();
  verb->prefix_command();  // every option is taken, and none is judged
  verb->callback([name] {
    std::cerr << "millrace: " << name
              << ": this build is without its component zeromq, which connects processes; install "
                 "ZeroMQ (Debian: libzmq3-dev, cppzmq-dev) and build with MILLRACE_WITH_ZEROMQ=ON, "
                 "or train in one process: millrace train\n";
    throw ExitCode{kNotBuilt};
  });
}

}  // namespace

void add_launch(CLI::App& app, const std::vector<std::string>& /*words*/) {
  add_absent(app, "launch", "Train with one process per rank");
}

void add_worker(CLI::App& app) {
  add_absent(app, "worker", "One rank of a job, started by an engine");
}

bool train_as_rank(const std::vector<std::string>& /*words*/) {
  return false;
}

void add_keys(CLI::App& app) {
  add_absent(app, "keys", "Make keys for ranks on several machines");
}

void add_doctor(CLI::App& app) {
  add_absent(app, "doctor", "Check that ranks can talk, and how fast");
}

}  // namespace millrace::cli
