// A place as variables and back, and a rank that has joined.
#include "millrace/transport/launch.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "core/names.hpp"
#include "millrace/core/error.hpp"
#include "transport/slurm.hpp"

namespace millrace {

namespace {

constexpr Names<Backend, 5> kBackends = {"endpoint",
                                         {{{"shm", Backend::SharedMemory},
                                           {"ipc", Backend::Ipc},
                                           {"tcp", Backend::Tcp},
                                           {"mixed", Backend::Mixed},
                                           {"mpi", Backend::Mpi}}}};

constexpr std::array kPlaceVariables = {"MILLRACE_RANK",
                                        "MILLRACE_WORLD",
                                        "MILLRACE_RENDEZVOUS",
                                        "MILLRACE_JOB",
                                        "MILLRACE_ENDPOINT",
                                        "MILLRACE_INTERFACE",
                                        "MILLRACE_KEYS",
                                        "MILLRACE_KEYS_FD",
                                        "MILLRACE_INSECURE",
                                        "MILLRACE_CORE_DUMPS",
                                        "MILLRACE_HEARTBEAT_TIMEOUT",
                                        "MILLRACE_JOIN_TIMEOUT",
                                        "MILLRACE_ACTION_TIMEOUT",
                                        "MILLRACE_LAUNCH",
                                        "MILLRACE_LOG_DIR",
                                        "MILLRACE_RESTART",
                                        "MILLRACE_BEGAN"};

std::string seconds_text(std::chrono::milliseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f", static_cast<double>(time.count()) / 1000);
  return text.data();
}

/// Reads variables that may be missing, each once.
class PlaceReader {
 public:
  explicit PlaceReader(const Variables& variables) : variables_(variables) {}

  void read(const char* name, std::string& value) const {
    if (const std::string* text = find(name)) value = *text;
  }

  void read(const char* name, bool& value) const {
    const std::string* text = find(name);
    if (text == nullptr) return;
    require(*text == "1" || *text == "0", std::string(name) + " is '" + *text + "'; it is 0 or 1");
    value = *text == "1";
  }

  void read(const char* name, std::chrono::milliseconds& value) const {
    double seconds = 0;
    if (!number(name, seconds)) return;
    require(seconds >= 0.001 && seconds <= 1e6,
            std::string(name) + " is '" + *find(name) + "'; it is from 0.001 to 1000000 seconds");
    value = std::chrono::milliseconds(std::llround(1000 * seconds));
  }

  template <class T>
  bool number(const char* name, T& value) const {
    const std::string* text = find(name);
    if (text == nullptr) return false;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    require(error == std::errc() && end == text->data() + text->size(),
            std::string(name) + " is '" + *text + "', not a number");
    return true;
  }

 private:
  [[nodiscard]] const std::string* find(const char* name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() || found->second.empty() ? nullptr : &found->second;
  }

  const Variables& variables_;
};

/// Tasks of srun have a folder and a first node in common.
void place_step(LaunchConfig& place, const Variables& variables) {
  const auto step = slurm_step(variables);
  if (!step) return;
  place.rendezvous = "tcp://" + step->first_node + ":" + std::to_string(step->port);
  place.shared = step->folder;
  place.member.job = step->job;
}

std::string why_no_meeting(int ranks, const Variables& variables) {
  const std::string why = "MILLRACE_RENDEZVOUS is not set, but there are " + std::to_string(ranks) +
                          " ranks, which must meet";
  if (!started_by_mpirun(variables)) return why;
  return why + "; those of mpirun meet by MPI in a build with the component mpi";
}

/// A rank or a rendezvous needs all of them; a process without any is alone.
void place_identity(LaunchConfig& place, const Variables& variables) {
  const Identity identity = find_identity({}, variables);
  const bool alone = !identity.rank && !identity.world && identity.rendezvous.empty();
  if (alone) return;
  require(identity.rank || !identity.world, [&] {
    return "the number of ranks is " + std::to_string(*identity.world) + " by " +
           identity.world_source + ", but no rank is set; unset " + identity.world_source +
           ", or set MILLRACE_RANK";
  });
  require(identity.rank.has_value(), "MILLRACE_RANK is not set, but this process is not alone");
  require(identity.world.has_value(),
          "MILLRACE_WORLD is not set, but this is rank " + std::to_string(*identity.rank) + " by " +
              identity.source);
  place.rendezvous = identity.rendezvous;
  if (place.rendezvous.empty() && uses_tcp(place.backend)) place_step(place, variables);
  require(!place.rendezvous.empty() || *identity.world == 1 || place.backend == Backend::Mpi,
          [&] { return why_no_meeting(*identity.world, variables); });
  place.member.rank = Rank{*identity.rank};
  place.member.world = *identity.world;
}

}  // namespace

std::string LaunchConfig::failure_notice() const {
  return directory.empty() ? std::string() : directory + "/failure_notice";
}

std::string LaunchConfig::joined_mark() const {
  if (directory.empty()) return {};
  return directory + "/joined-" + std::to_string(member.rank.value);
}

std::vector<std::string> launch_variable_names() {
  return {kPlaceVariables.begin(), kPlaceVariables.end()};
}

Variables launch_variables(const LaunchConfig& place) {
  Variables variables = {{"MILLRACE_RANK", std::to_string(place.member.rank.value)},
                         {"MILLRACE_WORLD", std::to_string(place.member.world)},
                         {"MILLRACE_RENDEZVOUS", place.rendezvous},
                         {"MILLRACE_JOB", std::to_string(place.member.job)},
                         {"MILLRACE_ENDPOINT", std::string(name_of(place.backend))},
                         {"MILLRACE_INTERFACE", place.interface},
                         {"MILLRACE_KEYS", place.keys},
                         {"MILLRACE_HEARTBEAT_TIMEOUT", seconds_text(place.heartbeat_timeout)},
                         {"MILLRACE_JOIN_TIMEOUT", seconds_text(place.join_timeout)},
                         {"MILLRACE_LAUNCH", place.directory},
                         {"MILLRACE_LOG_DIR", place.log_directory},
                         {"MILLRACE_RESTART", std::to_string(place.attempt)}};
  if (place.keys_descriptor >= 0)
    variables["MILLRACE_KEYS_FD"] = std::to_string(place.keys_descriptor);
  if (place.insecure) variables["MILLRACE_INSECURE"] = "1";
  if (place.core_dumps) variables["MILLRACE_CORE_DUMPS"] = "1";
  if (place.began > 0) variables["MILLRACE_BEGAN"] = fmt::format("{:.3f}", place.began);
  if (place.action_timeout)
    variables["MILLRACE_ACTION_TIMEOUT"] = seconds_text(*place.action_timeout);
  std::erase_if(variables, [](const auto& variable) { return variable.second.empty(); });
  return variables;
}

LaunchConfig launch_config(const Variables& variables) {
  LaunchConfig place;
  const PlaceReader reader(variables);
  std::string backend(name_of(place.backend));
  reader.read("MILLRACE_ENDPOINT", backend);
  place.backend = backend_of(backend);
  place.interface = "auto";
  place_identity(place, variables);
  reader.number("MILLRACE_JOB", place.member.job);
  reader.number("MILLRACE_KEYS_FD", place.keys_descriptor);
  reader.read("MILLRACE_INTERFACE", place.interface);
  reader.read("MILLRACE_KEYS", place.keys);
  reader.read("MILLRACE_INSECURE", place.insecure);
  reader.read("MILLRACE_CORE_DUMPS", place.core_dumps);
  reader.read("MILLRACE_HEARTBEAT_TIMEOUT", place.heartbeat_timeout);
  reader.read("MILLRACE_JOIN_TIMEOUT", place.join_timeout);
  std::chrono::milliseconds hang{0};
  reader.read("MILLRACE_ACTION_TIMEOUT", hang);
  if (hang.count() > 0) place.action_timeout = hang;
  reader.read("MILLRACE_LAUNCH", place.directory);
  reader.read("MILLRACE_LOG_DIR", place.log_directory);
  reader.number("MILLRACE_RESTART", place.attempt);
  reader.number("MILLRACE_BEGAN", place.began);
  return place;
}

Backend backend_of(std::string_view name) {
  return kBackends.value(name);
}

std::string_view name_of(Backend backend) {
  return kBackends.of(backend);
}

bool uses_tcp(Backend backend) {
  return backend == Backend::Tcp || backend == Backend::Mixed;
}

JoinedRank::JoinedRank(std::unique_ptr<Endpoint> endpoint,
                       std::string log_directory,
                       std::string connections,
                       int attempt)
    : endpoint_(std::move(endpoint)),
      group_(*endpoint_),
      log_directory_(std::move(log_directory)),
      connections_(std::move(connections)),
      attempt_(attempt) {}

void JoinedRank::leave(std::chrono::milliseconds longest) {
  endpoint_->leave(std::chrono::steady_clock::now() + longest);
}

}  // namespace millrace
