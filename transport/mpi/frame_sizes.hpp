// Which bytes travel in one message of MPI. Below 4 KiB every MPI hands a message over without
// asking the receiver, so that a receive of one that has come never waits for its sender.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/wire/envelope.hpp"

namespace millrace::mpi {

inline constexpr std::size_t kLargestFrame = 3840;

/// Of what ends an epoch; the rest is cut.
inline constexpr std::size_t kLongestText = kLargestFrame - kHeaderBytes;

/// Larger payloads are messages of their own, received where they stay.
[[nodiscard]] constexpr bool travels_apart(std::uint64_t payload_bytes) {
  return payload_bytes > 2048;
}

}  // namespace millrace::mpi
