// millrace doctor: can ranks talk to each other, and how fast? Alone, it connects two ranks over
// every endpoint of this machine; with -n it starts ranks that measure between each other.
#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <ifaddrs.h>
#include <iomanip>
#include <iostream>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>

#include "cli/ranks/core_dumps.hpp"
#include "cli/ranks/launch.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/stages/compiled.hpp"
#include "millrace/transport/failure.hpp"
#include "millrace/transport/frame.hpp"
#include "millrace/transport/rendezvous.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace::cli {

namespace {

constexpr int kRounds = 20;

struct DoctorFlags {
  LaunchFlags ranks;
  std::string rendezvous;
  bool json = false;
};

Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

MessageTag numbered(int round) {
  MessageTag tag;
  tag.step = static_cast<std::uint64_t>(round);
  return tag;
}

/// Seconds of one round trip of `bytes`, the mean of some after the first.
double round_trip(const ZeroMqOptions& options, std::int64_t bytes) {
  auto ends = zeromq_mesh(options);
  std::jthread echo([&] {
    try {
      for (int i = 0; i <= kRounds; ++i)
        ends[1]->send(Rank{0}, numbered(i), ends[1]->receive(Rank{0}, numbered(i), soon()));
    } catch (const TransportError& error) {
      ends[1]->cancel(error.what());
    }
  });
  std::chrono::steady_clock::time_point start;
  for (int i = 0; i <= kRounds; ++i) {
    if (i == 1) start = std::chrono::steady_clock::now();
    Tensor tensor(DType::U8, {bytes});
    tensor.fill_zero();
    ends[0]->send(Rank{1}, numbered(i), TensorList(std::move(tensor)));
    static_cast<void>(ends[0]->receive(Rank{1}, numbered(i), soon()));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRounds;
}

/// Prints a line and tells whether the check passed.
bool check(const std::string& what, const std::function<std::string()>& body) {
  try {
    const std::string found = body();
    std::cout << "ok    " << what << "  " << found << std::endl;
    return true;
  } catch (const std::exception& error) {
    std::cout << "FAIL  " << what << "  " << error.what() << std::endl;
    return false;
  }
}

std::string speed(ZeroMqOptions options) {
  constexpr std::int64_t kBlock = 1 << 20;
  const double small = round_trip(options, 4096);
  ++options.epoch;  // new endpoints in the same directory
  const double large = round_trip(options, kBlock);
  std::ostringstream text;
  text << std::fixed << std::setprecision(0) << "round trip " << 1e6 * small << " us for 4 KiB, "
       << 1e6 * large << " us for 1 MiB, " << std::setprecision(2)
       << 2 * static_cast<double>(kBlock) / large / 1e9 << " GB/s";
  return text.str();
}

/// "lo 127.0.0.1, eth0 10.0.0.3": what --interface can name.
std::string interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw Error("the system does not tell");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::string text;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, NI_MAXHOST> address{};
    if (::getnameinfo(at->ifa_addr,
                      sizeof(sockaddr_in),
                      address.data(),
                      address.size(),
                      nullptr,
                      0,
                      NI_NUMERICHOST) != 0)
      continue;
    text += (text.empty() ? "" : ", ") + std::string(at->ifa_name) + " " + address.data();
  }
  return text;
}

/// Could rank 0 listen there? It does, for a moment in which nobody comes.
std::string rendezvous_at(const std::string& url, ZeroMqOptions options) {
  const CurveKeys own = make_curve_keys();
  options.keys = {own, {own.public_key, make_curve_keys().public_key}};
  try {
    static_cast<void>(meet({.url = url, .patience = std::chrono::milliseconds(1)},
                           options,
                           std::make_shared<ZeroMqContext>()));
  } catch (const PeerHangs&) {
    return "rank 0 can listen there";
  }
  return "somebody else answers";
}

int examine(const DoctorFlags& flags) {
  keep_out_of_dumps(flags.ranks.link.core_dumps);
  std::cout << "millrace " << MILLRACE_VERSION << ", frame protocol " << kProtocolVersion << ", "
            << std::thread::hardware_concurrency() << " cores, code by " << compiled_code()
            << std::endl;
  bool healthy =
      check("keys", [] { return make_curve_keys().public_key.size() == 40 ? "CURVE" : ""; });
  healthy &= check("private directory",
                   [] { return PrivateDirectory(std::filesystem::temp_directory_path()).path(); });
  healthy &= check("interfaces", interfaces);
  ZeroMqOptions options;
  options.world = 2;
  options.interface = flags.ranks.link.interface;
  healthy &= check("ipc", [&] {
    const PrivateDirectory directory(std::filesystem::temp_directory_path());
    options.directory = directory.path();
    return speed(options);
  });
  options.directory.clear();
  options.link = ZeroMqLink::Tcp;
  healthy &= check("tcp on " + options.interface + " with keys", [&] { return speed(options); });
  if (!flags.rendezvous.empty())
    healthy &= check(flags.rendezvous, [&] { return rendezvous_at(flags.rendezvous, options); });
  return healthy ? 0 : 1;
}

int diagnose(DoctorFlags flags) {
  if (flags.ranks.processes == 0) {
    require(!flags.json, "--json: give -n as well; what is checked of one machine is text");
    return examine(flags);
  }
  require(flags.ranks.processes >= 2,
          "-n " + std::to_string(flags.ranks.processes) + ": it takes at least 2 ranks to measure");
  require(flags.rendezvous.empty(),
          "--rendezvous: either this or -n; between machines, start on each: "
          "millrace worker --rank R --world N --rendezvous URL --keys FILE -- doctor");
  flags.ranks.command = {"doctor"};
  if (flags.json) flags.ranks.command.emplace_back("--json");
  return launch(flags.ranks);
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "doctor",
      "Check that ranks can talk, and how fast: on this machine, or between -n of its processes");
  auto flags = std::make_shared<DoctorFlags>();
  flags->ranks.processes = 0;
  verb->add_option("-n,--processes",
                   flags->ranks.processes,
                   "Start so many, one rank each, and measure between them");
  verb->add_option("--rendezvous",
                   flags->rendezvous,
                   "Check that rank 0 could listen there: tcp://address:port");
  verb->add_flag("--json", flags->json, "What the ranks measured, for programs");
  add_link_flags(*verb, flags->ranks.link);
  verb->footer(
      "Between machines: millrace worker --rank R --world N --rendezvous URL --keys FILE -- "
      "doctor");
  verb->callback([flags, verb] {
    require(flags->ranks.processes != 0 || verb->count("--processes") == 0,
            "-n 0: it takes at least 2 ranks to measure");
    if (const int code = diagnose(*flags); code != 0) throw ExitCode{code};
  });
}

}  // namespace millrace::cli
