// The endpoint that a listener opens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/liveness/progress_slot.hpp"
#include "transport/shared_memory/region_loop.hpp"

namespace millrace::shared_memory {

/// `slot` is first to come and last to go: it holds the rank.
std::unique_ptr<Endpoint> make_endpoint(const SharedMemoryOptions& options,
                                        std::unique_ptr<ProgressSlot> slot,
                                        ListeningSocket socket,
                                        std::vector<std::string> sockets);

}  // namespace millrace::shared_memory
