// The parts of the ZeroMQ backend that a launch uses.
#pragma once

#include "millrace/transport/zeromq.hpp"
#include "transport/rendezvous/launched.hpp"

namespace millrace::zeromq {

/// See Listener::rendezvous_channel: rank 0 listens, every other rank connects to it. Ranks that
/// meet at an ipc path need no keys for it.
std::unique_ptr<RendezvousChannel> make_rendezvous_channel(const std::string& url,
                                                           std::size_t longest_note,
                                                           ZeroMqOptions options,
                                                           std::shared_ptr<ZeroMqContext> context);

/// Over ipc, tcp or mixed. Reads the keys, closes their descriptor and, unless core_dumps, makes
/// this process one that leaves no core dump. Throws InvalidParameter on a config that makes no
/// sense.
[[nodiscard]] Launched launched(const LaunchConfig& config,
                                const std::vector<ChannelDepth>& depths);

}  // namespace millrace::zeromq
