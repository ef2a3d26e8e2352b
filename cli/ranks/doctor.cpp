// millrace doctor: can ranks reach each other, and how fast? Alone, it connects two ranks over
// every endpoint of this machine; with -n it starts ranks that measure between each other.
#include <array>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <ifaddrs.h>
#include <iostream>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/ranks/launch.hpp"
#include "cli/ranks/process.hpp"
#include "cli/ranks/sockets.hpp"
#include "cli/subcommands.hpp"
#include "millrace/core/error.hpp"
#include "millrace/stages/products.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/shared_memory.hpp"

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
double round_trip(std::vector<std::unique_ptr<Endpoint>> ends, std::int64_t bytes) {
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
    ends[0]->send(Rank{1}, numbered(i), TensorList(std::move(tensor)));
    static_cast<void>(ends[0]->receive(Rank{1}, numbered(i), soon()));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRounds;
}

/// Checks one after another, each reported as soon as it is done; with --json all at the end.
class Examination {
 public:
  explicit Examination(bool json) : json_(json) {
    const unsigned cores = std::thread::hardware_concurrency();
    if (json_)
      all_ = {{"millrace", MILLRACE_VERSION},
              {"frame_protocol", kProtocolVersion},
              {"cores", cores},
              {"code", compiled_code()},
              {"products", product_libraries()},
              {"checks", nlohmann::ordered_json::array()}};
    else
      std::cout << "millrace " << MILLRACE_VERSION << ", frame protocol " << kProtocolVersion
                << ", " << cores << " cores\ncode by " << compiled_code()
                << "\nmatrix multiplication by " << product_libraries() << std::endl;
  }

  void check(const std::string& what, const std::function<std::string()>& body) {
    try {
      report(what, true, body());
    } catch (const std::exception& error) {
      report(what, false, error.what());
    }
  }

  /// The exit code.
  [[nodiscard]] int end() {
    if (json_) std::cout << all_.dump(2) << std::endl;
    return healthy_ ? 0 : 1;
  }

 private:
  void report(const std::string& what, bool passed, const std::string& found) {
    healthy_ = healthy_ && passed;
    if (json_)
      all_["checks"].push_back({{"check", what}, {"ok", passed}, {"found", found}});
    else
      std::cout << fmt::format("{:<6}{:<28}{}", passed ? "ok" : "FAIL", what, found) << std::endl;
  }

  bool json_;
  bool healthy_ = true;
  nlohmann::ordered_json all_;
};

/// "lo 127.0.0.1, eth0 10.0.0.3": what --interface can name.
std::string interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw Error("the operating system lists no interfaces");
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

int examine(const DoctorFlags& flags) {
  keep_out_of_dumps(flags.ranks.link.core_dumps);
  Examination examination(flags.json);
  examination.check("private directory",
                    [] { return PrivateDirectory(std::filesystem::temp_directory_path()).path(); });
  examination.check("interfaces", interfaces);
  examination.check("shared memory", [] {
    if (const auto problem = shared_memory_problem()) return "not to be had, " + *problem;
    const PrivateDirectory directory(std::filesystem::temp_directory_path());
    SharedMemoryOptions options;
    options.world = 2;
    options.directory = directory.path();
    return speed_of([&](std::uint32_t epoch) {
      options.epoch = epoch;
      return shared_memory_mesh(options);
    });
  });
  for (const Check& check : socket_checks(flags.ranks.link.interface, flags.rendezvous))
    examination.check(check.what, check.body);
  return examination.end();
}

int diagnose(DoctorFlags flags) {
  if (flags.ranks.processes == 0) return examine(flags);
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

std::string speed_of(const MakeMesh& mesh) {
  constexpr std::int64_t kBlock = 1 << 20;
  const double small = round_trip(mesh(0), 4096);
  const double large = round_trip(mesh(1), kBlock);
  return fmt::format("round trip {:.0f} us for 4 KiB, {:.0f} us for 1 MiB, {:.2f} GB/s",
                     1e6 * small,
                     1e6 * large,
                     2 * static_cast<double>(kBlock) / large / 1e9);
}

void add_doctor(CLI::App& app) {
  CLI::App* subcommand =
      app.add_subcommand("doctor",
                         "Check that ranks reach each other, and how fast: on this "
                         "machine, or between -n of its processes");
  auto flags = std::make_shared<DoctorFlags>();
  flags->ranks.processes = 0;
  subcommand->add_option("-n,--processes",
                         flags->ranks.processes,
                         "Number of processes to start, one rank each; measures between them");
  subcommand->add_option("--rendezvous",
                         flags->rendezvous,
                         "Check that rank 0 could listen there: tcp://address:port");
  subcommand->add_flag(
      "--json", flags->json, "What was found, or what the ranks measured, as one JSON object");
  add_link_flags(*subcommand, flags->ranks.link);
  subcommand->footer(
      "Between machines: millrace worker --rank R --world N --rendezvous URL --keys FILE -- "
      "doctor");
  subcommand->callback([flags, subcommand] {
    require(flags->ranks.processes != 0 || subcommand->count("--processes") == 0,
            "-n 0: it takes at least 2 ranks to measure");
    if (const int code = diagnose(*flags); code != 0) throw ExitCode{code};
  });
}

}  // namespace millrace::cli
