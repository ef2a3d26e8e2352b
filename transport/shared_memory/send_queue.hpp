// What a rank says in its own memory, which the others map for reading: a board for all of them and
// an send_queue for each. Memory of zeros is an empty one. Layouts are those of this version, which
// ranks compare when they meet.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/shared_memory/ring.hpp"

namespace millrace::shared_memory {

/// Slots that one rank's payloads for another can lie in at once.
inline constexpr std::uint32_t kSlots = 4096;

/// Of what ends an epoch; the rest is cut.
inline constexpr std::size_t kLongestText = 4000;

/// What it takes to wake a rank.
enum class Sleep : std::uint32_t {
  Awake,
  ForFrames,  ///< something that it would read
  ForRoom     ///< also that something was read
};

/// A rank's status, for every other rank.
struct Board {
  std::atomic<std::uint64_t> beat;  ///< changes as long as the rank's process runs
  std::atomic<Sleep> asleep;        ///< sequentially consistent, see RingMemory
  std::atomic<std::uint32_t> left;  ///< 1: nothing more will be published anywhere
  /// 0, or 1 + FailureCause: every rank must stop. Release: publishes the text.
  std::atomic<std::uint32_t> stop;
  std::uint32_t text_bytes;
  std::array<char, kLongestText> text;
};

/// What a rank says to one other.
struct SendQueue {
  std::atomic<std::uint32_t> met;                   ///< 1: the other's introduction was read
  std::atomic<std::uint64_t> consumed;              ///< entries of the other's ring
  std::array<std::atomic<std::uint64_t>, 3> taken;  ///< messages of the other's, per Direction
  RingMemory ring;
  /// By slot of the other's: the last use that is over. Release: pairs with the acquire load of the
  /// sender, which then writes there again.
  std::array<std::atomic<std::uint32_t>, kSlots> released;
};

}  // namespace millrace::shared_memory
