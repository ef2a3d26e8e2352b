// Where a rank is reached: the socket in the private directory at which it gives its memory away.
#pragma once

#include <string>

#include "millrace/transport/listener.hpp"
#include "millrace/transport/shared_memory.hpp"

namespace millrace::shared_memory {

/// Throws InvalidArgument for a path that is no line.
[[nodiscard]] PeerAddress peer_address(const std::string& socket);

/// Throws TransportError for a text that peer_address did not make.
[[nodiscard]] std::string socket_path(const PeerAddress& address);

/// The path of the meeting. Throws InvalidArgument unless it is "ipc://path".
[[nodiscard]] std::string meeting_path(const std::string& url);

/// "directory/r3.0.what": files of a rank.
[[nodiscard]] std::string file_of_rank(const SharedMemoryOptions& options,
                                       Rank rank,
                                       const char* what);

/// The rank whose file has that path, or -1.
[[nodiscard]] int rank_of_file(const std::string& path);

}  // namespace millrace::shared_memory
