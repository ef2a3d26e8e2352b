// Joining a job: from a place to connected ranks. The one file that reads the environment.
#include <cctype>
#include <cerrno>
#include <fcntl.h>
#include <sys/prctl.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "millrace/core/sentence.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/launch.hpp"
#include "millrace/transport/rendezvous.hpp"
#include "millrace/transport/shared_memory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/shared_memory/neighbourhood.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/folder_rendezvous.hpp"
#ifdef MILLRACE_MPI
#include "millrace/transport/mpi.hpp"
#endif

namespace millrace {

namespace {

/// An engine may give rank 0's machine its name later than it starts this one.
std::string interface_of(const LaunchConfig& place, ZeroMqLink link) {
  if (place.interface != "auto") return place.interface;
  const bool tcp = place.rendezvous.starts_with("tcp://");
  if (link != ZeroMqLink::Tcp || !tcp) return "127.0.0.1";
  const std::string host = zeromq::meeting_place(place.rendezvous).host;
  const auto end = std::chrono::steady_clock::now() + place.join_timeout;
  for (;;) {
    try {
      return zeromq::address_towards(host);
    } catch (const TransportError&) {
      if (std::chrono::steady_clock::now() > end) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

template <class Options>
Options options_at(const LaunchConfig& place, const std::vector<ChannelDepth>& depths) {
  Options options;
  static_cast<Membership&>(options) = place.member;
  options.depths = depths;
  options.heartbeat_timeout = place.heartbeat_timeout;
  options.action_timeout = place.action_timeout;
  return options;
}

ZeroMqOptions link_options_of(const LaunchConfig& place, const std::vector<ChannelDepth>& depths) {
  auto options = options_at<ZeroMqOptions>(place, depths);
  options.link = zeromq_link(place.endpoint);
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
  ZeroMqOptions options = link_options_of(place, depths);
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

SharedMemoryOptions shared_memory_options(const LaunchConfig& place,
                                          const std::vector<ChannelDepth>& depths) {
  const bool ipc = place.rendezvous.starts_with("ipc://");
  require(place.member.world == 1 || ipc,
          named("endpoint") + " shm: ranks of one machine meet at ipc://directory/name, but " +
              named("rendezvous") + " is " + place.rendezvous);
  auto options = options_at<SharedMemoryOptions>(place, depths);
  if (ipc) options.directory = place.rendezvous.substr(6, place.rendezvous.rfind('/') - 6);
  return options;
}

#ifdef MILLRACE_MPI
constexpr bool kHasMpi = true;

void begin_mpi() {
  start_mpi();
}

std::unique_ptr<Listener> mpi_listener(const LaunchConfig& place,
                                       const std::vector<ChannelDepth>& depths) {
  auto options = options_at<MpiOptions>(place, depths);
  options.places = place.places;
  return std::make_unique<MpiListener>(options);
}

/// Ranks that were built with different ones could not even say so; versions of one could.
void add_library(HelloFields& fields) {
  fields.emplace_back("MPI", mpi_library());
}
#else
constexpr bool kHasMpi = false;

void begin_mpi() {}

std::unique_ptr<Listener> mpi_listener(const LaunchConfig&, const std::vector<ChannelDepth>&) {
  throw InvalidArgument("this build is without its component mpi");
}

void add_library(HelloFields&) {}
#endif

/// By the backend that the place names; one more has its line here.
std::unique_ptr<Listener> listener_at(const LaunchConfig& place,
                                      const std::vector<ChannelDepth>& depths) {
  if (place.endpoint == "mpi") return mpi_listener(place, depths);
  if (place.endpoint == "shm")
    return std::make_unique<SharedMemoryListener>(shared_memory_options(place, depths));
  return std::make_unique<ZeroMqListener>(zeromq_options(place, depths),
                                          std::make_shared<ZeroMqContext>());
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

/// What `body` returns; parameters of sentences are called by their variables.
template <class Body>
auto in_variables(const Body& body) {
  try {
    return body();
  } catch (const InvalidParameter& error) {
    throw InvalidArgument(error.sentence().text(variable_of));
  }
}

}  // namespace

ZeroMqLink zeromq_link(const std::string& endpoint) {
  if (endpoint == "ipc") return ZeroMqLink::Ipc;
  require(speaks_tcp(endpoint),
          named("endpoint") + " " + endpoint + ": known are auto, shm, ipc, tcp, mixed, mpi");
  return ZeroMqLink::Tcp;
}

std::string chosen_endpoint(const std::string& asked, const Variables& variables) {
  if (asked == "auto" && kHasMpi && started_by_mpirun(variables)) return "mpi";
  if (asked == "auto") return meets_on_this_host(variables) ? "shm" : "mixed";
  require(asked != "mpi" || kHasMpi,
          named("endpoint") + " mpi: this build is without its component mpi");
  if (asked != "mpi" && asked != "shm") static_cast<void>(zeromq_link(asked));
  return asked;
}

void begin_ranks(const LaunchConfig& place) {
  if (place.endpoint == "mpi") begin_mpi();
}

JoinedRank join(const LaunchConfig& asked, const JoinOptions& options) {
  leave_mark(asked.joined_mark());
  const zeromq::FolderRendezvous shared(asked);  // until all have met
  const LaunchConfig& place = shared.place();
  const auto listener = listener_at(place, options.depths);
  const bool mpi = place.endpoint == "mpi";
  HelloFields fields = options.fields;
  if (mpi) add_library(fields);
  auto endpoint = meet({.url = mpi ? "MPI" : place.rendezvous,
                        .fields = fields,
                        .join_timeout = place.join_timeout,
                        .heartbeat_timeout = place.heartbeat_timeout,
                        .progress = options.progress,
                        .obituary = place.obituary()},
                       std::move(*listener));
  return {std::move(endpoint), place.log_directory, listener->connections()};
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
