// The notes of a meeting in a private directory: datagrams, of which each is a whole note.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "millrace/transport/shared_memory.hpp"

namespace millrace::shared_memory {

/// See Listener::rendezvous_channel.
[[nodiscard]] std::unique_ptr<RendezvousChannel> make_rendezvous_channel(
    const std::string& url, std::size_t longest_note, const SharedMemoryOptions& options);

}  // namespace millrace::shared_memory
