#include "transport/mpi/address.hpp"

#include "millrace/core/error.hpp"

namespace millrace::mpi {

PeerAddress peer_address(Rank rank) {
  return {"mpi:" + std::to_string(rank.value)};
}

void check_address(const PeerAddress& address, Rank rank) {
  if (address != peer_address(rank))
    throw TransportError("'" + address.text + "' is no address of rank " +
                         std::to_string(rank.value) + " over MPI");
}

}  // namespace millrace::mpi
