// The parts of the shared memory backend that other files use: addresses, the rendezvous, a launch,
// and which ranks of a job over something else may share memory.
#pragma once

#include <string>

#include "millrace/transport/shared_memory.hpp"
#include "transport/rendezvous/launched.hpp"

namespace millrace::shared_memory {

/// Throws InvalidArgument unless `url` is "ipc://path"; returns the path.
[[nodiscard]] std::string rendezvous_path(const std::string& url);

/// "directory/r3.0.what": files of a rank.
[[nodiscard]] std::string file_of_rank(const SharedMemoryOptions& options,
                                       Rank rank,
                                       const char* what);

/// See Listener::rendezvous_channel: each message is a datagram in the private directory.
[[nodiscard]] std::unique_ptr<RendezvousChannel> make_rendezvous_channel(
    const std::string& url, std::size_t longest_note, const SharedMemoryOptions& options);

/// Ranks of one host; throws InvalidParameter unless they meet at "ipc://path".
[[nodiscard]] Launched launched(const LaunchConfig& config,
                                const std::vector<ChannelDepth>& depths);

/// A name that all processes of this user on this running operating system have in common, and no
/// others: whether two of them see each other shows the socket at which one answers the other.
/// Empty where this process cannot share memory, or cannot find out.
[[nodiscard]] std::string local_group();

/// An unguessable name of a socket without a file. Throws TransportError without random numbers.
[[nodiscard]] std::string nameless_socket();

}  // namespace millrace::shared_memory
