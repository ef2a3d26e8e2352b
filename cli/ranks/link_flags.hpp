// Flags of the transport that launch, worker and doctor share.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "millrace/transport/launch.hpp"

namespace millrace::cli {

/// Transport between the ranks of one job. Times in seconds.
struct LinkFlags {
  std::string link;  ///< "shm", "ipc", "tcp", "mixed", "mpi", or "auto" before it is settled
  std::string interface = "127.0.0.1";
  double heartbeat_timeout = 10;
  std::optional<double> action_timeout = {};
  double join_timeout = 60;
  bool insecure = false;
  bool core_dumps = false;
};

/// Adds them to the subcommand with the values of `flags` as defaults; `flags` must outlive it.
void add_link_flags(CLI::App& subcommand, LinkFlags& flags);

/// Throws InvalidArgument on an unknown endpoint and on times that are not above 0.
void check(const LinkFlags& flags);

/// False for "auto", which is not settled.
[[nodiscard]] bool uses_tcp(const LinkFlags& flags);

/// A configuration of which only the transport is known yet.
[[nodiscard]] LaunchConfig place_of(const LinkFlags& flags);

[[nodiscard]] std::chrono::milliseconds milliseconds(double seconds);

}  // namespace millrace::cli
