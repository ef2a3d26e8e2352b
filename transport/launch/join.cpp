// Joining a job: from a LaunchConfig to connected ranks. The one file that reads the environment,
// and the one that knows all backends.
#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/launch.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/shared_memory.hpp"
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

struct Backend {
  std::string_view endpoint;   ///< as --endpoint names it
  std::string_view component;  ///< that it is of
  Launched (*launched)(const LaunchConfig&, const std::vector<ChannelDepth>&);  ///< null: not built
  void (*start)() = nullptr;  ///< on the thread that the process ends with
};

#ifdef MILLRACE_ZEROMQ
constexpr auto kOverZeroMq = zeromq::launched;
#else
constexpr decltype(Backend::launched) kOverZeroMq = nullptr;
#endif
#ifdef MILLRACE_MPI
constexpr Backend kMpi{"mpi", "mpi", mpi::launched, start_mpi};
#else
constexpr Backend kMpi{"mpi", "mpi", nullptr};
#endif

/// One more backend has its line here.
constexpr std::array kBackends = {Backend{"shm", "transport", shared_memory::launched},
                                  Backend{"ipc", "zeromq", kOverZeroMq},
                                  Backend{"tcp", "zeromq", kOverZeroMq},
                                  Backend{"mixed", "zeromq", kOverZeroMq},
                                  kMpi};

bool is_built(std::string_view endpoint) {
  return std::ranges::any_of(kBackends, [&](const Backend& backend) {
    return backend.endpoint == endpoint && backend.launched != nullptr;
  });
}

const Backend& backend_of(const std::string& endpoint) {
  std::string known = "auto";
  for (const Backend& backend : kBackends) {
    if (backend.endpoint == endpoint) {
      require(is_built(endpoint),
              named("endpoint") + " " + endpoint + ": this build is without its component " +
                  std::string(backend.component));
      return backend;
    }
    known += ", " + std::string(backend.endpoint);
  }
  throw InvalidParameter(named("endpoint") + " " + endpoint + ": must be one of " + known);
}

bool meets_on_this_host(const Variables& variables) {
  const auto place = variables.find("MILLRACE_RENDEZVOUS");
  return place != variables.end() && place->second.starts_with("ipc://") &&
         !shared_memory_problem();
}

/// For the launcher, who waits for it.
void leave_mark(const std::string& path) {
  if (path.empty()) return;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0)
    throw TransportError("the launcher cannot be told at " + path + ": " +
                         std::generic_category().message(errno));
  ::close(file);
}

Variables own_environment() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
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

std::string chosen_endpoint(const std::string& asked, const Variables& variables) {
  if (asked != "auto") return std::string(backend_of(asked).endpoint);
  if (is_built("mpi") && started_by_mpirun(variables)) return "mpi";
  return !is_built("mixed") || meets_on_this_host(variables) ? "shm" : "mixed";
}

void begin_ranks(const LaunchConfig& place) {
  if (const Backend& backend = backend_of(place.endpoint); backend.start != nullptr)
    backend.start();
}

JoinedRank join(const LaunchConfig& config, const JoinOptions& options) {
  leave_mark(config.joined_mark());
  const Launched own = backend_of(config.endpoint).launched(config, options.depths);
  HelloFields fields = options.fields;
  fields.insert(fields.end(), own.fields.begin(), own.fields.end());
  auto endpoint = meet({.url = own.url,
                        .fields = fields,
                        .join_timeout = config.join_timeout,
                        .heartbeat_timeout = config.heartbeat_timeout,
                        .progress = options.progress,
                        .obituary = config.obituary()},
                       std::move(*own.listener));
  return {std::move(endpoint), config.log_directory, own.listener->connections()};
}

LaunchConfig own_launch_config() {
  Variables variables = own_environment();
  std::string& endpoint = variables["MILLRACE_ENDPOINT"];
  return in_variables([&] {
    endpoint = chosen_endpoint(endpoint.empty() ? "auto" : endpoint, variables);
    return launch_config(variables);
  });
}

JoinedRank join_launch(const JoinOptions& options) {
  return join_launch_at(own_launch_config(), options);
}

JoinedRank join_launch_at(const LaunchConfig& place, const JoinOptions& options) {
  if (place.member.world == 1 && place.rendezvous.empty())
    return {InProcessHub(1, options.depths).endpoint(Rank{0}), place.log_directory};
  return in_variables([&] { return join(place, options); });
}

}  // namespace millrace
