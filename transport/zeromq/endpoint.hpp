// The endpoint that a listener opens.
#pragma once

#include <memory>
#include <vector>

#include "transport/liveness/progress_slot.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/socket_loop.hpp"

namespace millrace::zeromq {

/// `slot` is first to come and last to go: it holds the rank.
std::unique_ptr<Endpoint> make_endpoint(const ZeroMqOptions& options,
                                        std::unique_ptr<ProgressSlot> slot,
                                        Listeners listeners,
                                        const std::vector<SocketAddresses>& addresses);

}  // namespace millrace::zeromq
