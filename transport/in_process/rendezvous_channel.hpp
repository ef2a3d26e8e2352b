// The notes of a meeting between threads: a queue per place and receiver.
#pragma once

#include <memory>
#include <string>

#include "transport/in_process/hub.hpp"

namespace millrace::in_process {

/// See Listener::rendezvous_channel; any text is a place.
[[nodiscard]] std::unique_ptr<RendezvousChannel> make_rendezvous_channel(std::shared_ptr<Hub> hub,
                                                                         Rank rank,
                                                                         const std::string& url);

}  // namespace millrace::in_process
