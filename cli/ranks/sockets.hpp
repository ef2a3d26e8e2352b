// What ranks that use sockets need; a build without ZeroMQ has a substitute (cli/absent).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/transport/endpoint.hpp"

namespace millrace::cli {

/// Keys of all ranks, for a launch over tcp.
void make_keys(const std::string& directory, int ranks);

/// How many descriptors a process with one rank of `world` may have open at once for it.
[[nodiscard]] std::size_t most_descriptors(int world);

/// A check of doctor: what is checked, and what returns the finding or throws.
struct Check {
  std::string what;
  std::function<std::string()> body;
};

/// Of keys, of ipc and tcp, and whether rank 0 could listen at `rendezvous`, unless that is empty.
[[nodiscard]] std::vector<Check> socket_checks(const std::string& interface,
                                               const std::string& rendezvous);

/// Round trips between two endpoints that `mesh` connects, new ones for every epoch.
using MakeMesh = std::function<std::vector<std::unique_ptr<Endpoint>>(std::uint32_t epoch)>;
[[nodiscard]] std::string speed_of(const MakeMesh& mesh);

}  // namespace millrace::cli
