// The sockets of a meeting: rank 0 listens, every other rank dials it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "millrace/transport/zeromq.hpp"

namespace millrace::zeromq {

/// See Listener::rendezvous_channel; ranks that meet at an ipc path need no keys for it.
std::unique_ptr<RendezvousChannel> make_rendezvous_channel(const std::string& url,
                                                           std::size_t longest_note,
                                                           ZeroMqOptions options,
                                                           std::shared_ptr<ZeroMqContext> context);

}  // namespace millrace::zeromq
