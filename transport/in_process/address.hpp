// Where a rank of this process is reached: by its number in the hub that all of them share.
#pragma once

#include "millrace/transport/listener.hpp"

namespace millrace::in_process {

[[nodiscard]] PeerAddress peer_address(Rank rank);

/// Throws TransportError for a text that peer_address did not make.
[[nodiscard]] Rank rank_at(const PeerAddress& address);

}  // namespace millrace::in_process
