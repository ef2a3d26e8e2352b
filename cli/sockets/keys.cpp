// millrace keys, the keys of a launch, and doctor's checks of sockets.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>

#include "cli/ranks/process.hpp"
#include "cli/ranks/sockets.hpp"
#include "cli/subcommands.hpp"
#include "millrace/core/error.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace::cli {

namespace {

void print_keys(int ranks, const std::string& directory) {
  keep_out_of_dumps(false);
  require(ranks >= 1 && ranks <= 4096, "-n " + std::to_string(ranks) + ": must be from 1 to 4096");
  std::error_code error;
  if (std::filesystem::create_directories(directory, error))
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  const std::string refusal = "--out " + directory + ": cannot be made: " + error.message();
  if (error == std::errc::no_space_on_device || error == std::errc::read_only_file_system)
    throw Error(refusal);
  require(!error, refusal);
  for (const std::string& path : write_key_files(directory, ranks)) std::cout << path << '\n';
}

std::string speed_over(ZeroMqOptions options) {
  return speed_of([&](std::uint32_t epoch) {
    options.epoch = epoch;
    return zeromq_mesh(options);
  });
}

std::string ipc_speed() {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  ZeroMqOptions options;
  options.world = 2;
  options.directory = directory.path();
  return speed_over(options);
}

/// Could rank 0 listen there? It does, for a moment in which no rank comes.
std::string rendezvous_at(const std::string& url, ZeroMqOptions options) {
  const CurveKeys own = make_curve_keys();
  options.keys = {own, {own.public_key, make_curve_keys().public_key}};
  try {
    static_cast<void>(meet({.url = url, .join_timeout = std::chrono::milliseconds(1)},
                           ZeroMqListener(options, std::make_shared<ZeroMqContext>())));
  } catch (const PeerHangs&) {
    return "rank 0 can listen there";
  }
  return "another process answers";
}

}  // namespace

/// No user named the folder: a failure to write there is no usage error.
void make_keys(const std::string& directory, int ranks) {
  try {
    static_cast<void>(write_key_files(directory, ranks));
  } catch (const InvalidArgument& refusal) {
    throw Error(refusal.what());
  }
}

std::size_t most_descriptors(int world) {
  return descriptors_of_rank(world);
}

std::vector<Check> socket_checks(const std::string& interface, const std::string& rendezvous) {
  ZeroMqOptions tcp;
  tcp.world = 2;
  tcp.link = ZeroMqLink::Tcp;
  tcp.interface = interface;
  std::vector<Check> checks = {
      {"keys", [] { return make_curve_keys().public_key.size() == 40 ? "CURVE" : ""; }},
      {"ipc", ipc_speed},
      {"tcp on " + interface + " with keys", [tcp] { return speed_over(tcp); }}};
  if (!rendezvous.empty())
    checks.push_back({rendezvous, [=] { return rendezvous_at(rendezvous, tcp); }});
  return checks;
}

void add_keys(CLI::App& app) {
  CLI::App* subcommand = app.add_subcommand(
      "keys", "Make keys for ranks on several machines, a file for each: keys -n 4 --out DIR");
  auto ranks = std::make_shared<int>(0);
  auto directory = std::make_shared<std::string>();
  subcommand->add_option("-n,--processes", *ranks, "Number of processes, one per rank")->required();
  subcommand
      ->add_option("--out", *directory, "Folder that gets keys-0, keys-1, ...; made if missing")
      ->required();
  subcommand->callback([ranks, directory] { print_keys(*ranks, *directory); });
}

}  // namespace millrace::cli
