// A launch over shared memory.
#pragma once

#include "transport/rendezvous/launched.hpp"

namespace millrace::shared_memory {

/// Ranks of one host; throws InvalidParameter unless they meet at "ipc://path".
[[nodiscard]] Launched launched(const LaunchConfig& config,
                                const std::vector<ChannelDepth>& depths);

}  // namespace millrace::shared_memory
