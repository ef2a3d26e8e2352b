// How descriptors go from one process to another: over a socket of the private directory, with a
// few words about what they are. Nothing else is sent there than a rank's identity and the memory
// it has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

#include "transport/shared_memory/region.hpp"

namespace millrace::shared_memory {

enum class DescriptorMessageKind : std::uint32_t {
  Introduction = 1,  ///< board, send_queue, bell
  Segment = 2        ///< the next one of the sender's
};

/// As it travels.
struct DescriptorMessage {
  DescriptorMessageKind kind = DescriptorMessageKind::Introduction;
  std::uint32_t epoch = 0;
  std::uint64_t job = 0;
  std::int32_t source = 0;
  std::int32_t destination = 0;
  std::uint64_t bytes = 0;   ///< of a segment
  std::uint32_t number = 0;  ///< of a segment
  std::uint32_t version = 0;
};

inline constexpr std::size_t kMostDescriptors = 3;

/// False when it cannot be sent now; after the end of the connection it never can.
[[nodiscard]] bool send_message(int socket,
                                const DescriptorMessage& message,
                                std::vector<int> descriptors);

enum class Arrival : std::uint8_t { Nothing, Came, Ended, Garbage };

/// What came, without waiting.
struct ReceivedMessage {
  Arrival arrival = Arrival::Nothing;
  DescriptorMessage message;
  std::vector<Descriptor> descriptors;
};
[[nodiscard]] ReceivedMessage receive_message(int socket);

/// What a name of a socket begins with that is no path: of the network namespace, gone with who
/// listens there.
inline constexpr char kNameless = '@';

/// A socket bound to `path`, where a dead process's is replaced: who calls holds the rank. Throws
/// TransportError where something else lies, InvalidArgument for a path above 107 bytes.
[[nodiscard]] Descriptor bind_socket(const std::string& path, int type);

/// Listens there, for at most `backlog` at once.
[[nodiscard]] Descriptor listen_at(const std::string& path, int backlog);

/// A connection to the process that listens there; none when none does, or it does not accept, or
/// is another user. Throws InvalidArgument as above.
[[nodiscard]] Descriptor connect_to(const std::string& path);

/// Whether this user is at the other end.
[[nodiscard]] bool is_ours(int socket);

/// The next connection; none when there is none.
[[nodiscard]] Descriptor accept_from(int listener);

/// Becomes readable at the end of the process at the other end; none where that is this process, or
/// one that this one cannot name.
[[nodiscard]] Descriptor process_of(int socket);

}  // namespace millrace::shared_memory
