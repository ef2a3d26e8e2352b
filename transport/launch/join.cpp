// Joining a job: from a LaunchConfig to connected ranks. The one file that reads the environment,
// and the one that knows all backends.
#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/launch.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "transport/liveness/progress_slot.hpp"
#include "transport/shared_memory/backend.hpp"
#ifdef MILLRACE_ZEROMQ
#include "transport/zeromq/backend.hpp"
#endif
#ifdef MILLRACE_MPI
#include "millrace/transport/mpi.hpp"
#include "transport/mpi/backend.hpp"
#endif

namespace millrace {

namespace {

/// How ranks join over a backend.
struct Joining {
  Backend backend;
  std::string_view component;                                                   ///< that it is of
  Launched (*launched)(const LaunchConfig&, const std::vector<ChannelDepth>&);  ///< null: not built
  void (*start)() = nullptr;  ///< on the thread that the process ends with
};

#ifdef MILLRACE_ZEROMQ
constexpr auto kOverZeroMq = zeromq::launched;
#else
constexpr decltype(Joining::launched) kOverZeroMq = nullptr;
#endif
#ifdef MILLRACE_MPI
constexpr Joining kMpi{Backend::Mpi, "mpi", mpi::launched, start_mpi};
#else
constexpr Joining kMpi{Backend::Mpi, "mpi", nullptr};
#endif

/// One more backend has its line here.
constexpr std::array kBackends = {
    Joining{Backend::SharedMemory, "transport", shared_memory::launched},
    Joining{Backend::Ipc, "zeromq", kOverZeroMq},
    Joining{Backend::Tcp, "zeromq", kOverZeroMq},
    Joining{Backend::Mixed, "zeromq", kOverZeroMq},
    kMpi};

const Joining& joining(Backend backend) {
  return *std::ranges::find(kBackends, backend, &Joining::backend);
}

bool is_built(Backend backend) {
  return joining(backend).launched != nullptr;
}

/// Throws InvalidParameter unless it is built.
const Joining& built(Backend backend) {
  require(is_built(backend),
          named("endpoint") + " " + std::string(name_of(backend)) +
              ": this build is without its component " + std::string(joining(backend).component));
  return joining(backend);
}

Backend named_backend(std::string_view name) {
  std::string known = "auto";
  for (const Joining& each : kBackends) {
    if (name_of(each.backend) == name) return each.backend;
    known += ", " + std::string(name_of(each.backend));
  }
  throw InvalidParameter(named("endpoint") + " " + std::string(name) + ": must be one of " + known);
}

bool meets_on_this_host(const Variables& variables) {
  const auto place = variables.find("MILLRACE_RENDEZVOUS");
  return place != variables.end() && place->second.starts_with("ipc://") &&
         !shared_memory_problem();
}

/// For the launcher, which waits for it.
void leave_mark(const std::string& path) {
  if (path.empty()) return;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0)
    throw TransportError("the mark for the launcher cannot be made at " + path + ": " +
                         std::generic_category().message(errno));
  ::close(file);
}

/// "keys" is MILLRACE_KEYS.
std::string variable_of(std::string_view parameter) {
  std::string name = "MILLRACE_";
  for (const char letter : parameter)
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return name;
}

/// What `body` returns; errors name parameters by their variables.
template <class Body>
auto in_variables(const Body& body) {
  try {
    return body();
  } catch (const InvalidParameter& error) {
    throw InvalidArgument(error.message().text(variable_of));
  }
}

}  // namespace

Variables own_environment() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

std::optional<std::int64_t> LaunchConfig::step_of(Rank rank) const {
  const auto activity =
      ProgressSlot::of(fmt::format("{}/r{}.{}.progress", directory, rank.value, member.epoch));
  constexpr std::uint64_t kFirstEvaluation = std::uint64_t{1} << 63U;
  const bool steps = activity && activity->doing != Doing::Starts &&
                     activity->doing != Doing::Departs && activity->doing != Doing::Left &&
                     activity->tag.step < kFirstEvaluation;
  return steps ? std::optional(static_cast<std::int64_t>(activity->tag.step)) : std::nullopt;
}

Backend chosen_backend(std::string_view asked, const Variables& variables) {
  if (asked != "auto") return built(named_backend(asked)).backend;
  if (is_built(Backend::Mpi) && started_by_mpirun(variables)) return Backend::Mpi;
  return !is_built(Backend::Mixed) || meets_on_this_host(variables) ? Backend::SharedMemory
                                                                    : Backend::Mixed;
}

void begin_ranks(const LaunchConfig& place) {
  if (const Joining& backend = built(place.backend); backend.start != nullptr) backend.start();
}

JoinedRank join(const LaunchConfig& config, const JoinOptions& options) {
  leave_mark(config.joined_mark());
  const Launched own = built(config.backend).launched(config, options.depths);
  HelloFields fields = options.fields;
  fields.insert(fields.end(), own.fields.begin(), own.fields.end());
  auto endpoint = meet({.url = own.url,
                        .fields = fields,
                        .join_timeout = config.join_timeout,
                        .heartbeat_timeout = config.heartbeat_timeout,
                        .progress = options.progress,
                        .failure_notice = config.failure_notice()},
                       std::move(*own.listener));
  return {std::move(endpoint), config.log_directory, own.listener->connections(), config.attempt};
}

LaunchConfig own_launch_config() {
  Variables variables = own_environment();
  std::string& endpoint = variables["MILLRACE_ENDPOINT"];
  return in_variables([&] {
    endpoint = name_of(chosen_backend(endpoint.empty() ? "auto" : endpoint, variables));
    return launch_config(variables);
  });
}

JoinedRank join_launch(const JoinOptions& options) {
  return join_launch_at(own_launch_config(), options);
}

JoinedRank join_launch_at(const LaunchConfig& place, const JoinOptions& options) {
  if (place.member.world == 1 && place.rendezvous.empty())
    return {
        InProcessHub(1, options.depths).endpoint(Rank{0}), place.log_directory, {}, place.attempt};
  return in_variables([&] { return join(place, options); });
}

}  // namespace millrace
