// The endpoint that a listener opens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/liveness/progress_slot.hpp"
#include "transport/shared_memory/region_loop.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/socket_loop.hpp"

namespace millrace::zeromq {

/// What a listener opens, and Listener::connections.
struct Opened {
  std::unique_ptr<Endpoint> endpoint;
  std::string connections;
};

/// `slot` is first to come and last to go: it holds the rank. At `memory` others of this host share
/// theirs, where the options name a neighbourhood.
Opened make_endpoint(const ZeroMqOptions& options,
                     std::unique_ptr<ProgressSlot> slot,
                     Listeners listeners,
                     shared_memory::ListeningSocket memory,
                     const std::vector<SocketAddresses>& addresses);

}  // namespace millrace::zeromq
