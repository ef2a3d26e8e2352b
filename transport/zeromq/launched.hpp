// A launch over ipc and tcp.
#pragma once

#include "transport/rendezvous/launched.hpp"

namespace millrace::zeromq {

/// Over ipc, tcp or mixed. Reads the keys, closes their descriptor and, unless core_dumps, makes
/// this process one that leaves no core dump. Throws InvalidParameter on a config that makes no
/// sense.
[[nodiscard]] Launched launched(const LaunchConfig& config,
                                const std::vector<ChannelDepth>& depths);

}  // namespace millrace::zeromq
