// The parts of the MPI backend that a launch uses.
#pragma once

#include "transport/rendezvous/launched.hpp"

namespace millrace::mpi {

/// The messages of a rendezvous over MPI, whose processes know each other before it; every process
/// has `places` ranks.
[[nodiscard]] std::unique_ptr<RendezvousChannel> make_rendezvous_channel(const Membership& member,
                                                                         int places,
                                                                         std::size_t longest_note);

/// Ranks that mpirun started.
[[nodiscard]] Launched launched(const LaunchConfig& config,
                                const std::vector<ChannelDepth>& depths);

}  // namespace millrace::mpi
