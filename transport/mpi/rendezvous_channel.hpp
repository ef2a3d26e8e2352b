// The notes of a meeting over MPI, whose processes know each other before they meet.
#pragma once

#include <cstddef>
#include <memory>

#include "millrace/transport/listener.hpp"

namespace millrace::mpi {

[[nodiscard]] std::unique_ptr<RendezvousChannel> make_rendezvous_channel(const Membership& member,
                                                                         int places,
                                                                         std::size_t longest_note);

}  // namespace millrace::mpi
