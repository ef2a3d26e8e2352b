// A launch by mpirun.
#pragma once

#include "transport/rendezvous/launched.hpp"

namespace millrace::mpi {

/// Ranks that mpirun started.
[[nodiscard]] Launched launched(const LaunchConfig& config,
                                const std::vector<ChannelDepth>& depths);

}  // namespace millrace::mpi
