// Where a rank is reached by MPI: its number, from which its process follows.
#pragma once

#include "millrace/transport/listener.hpp"

namespace millrace::mpi {

[[nodiscard]] PeerAddress peer_address(Rank rank);

/// Throws TransportError unless `address` is that of `rank`: MPI counts as we do.
void check_address(const PeerAddress& address, Rank rank);

}  // namespace millrace::mpi
