// Where a sender writes the payloads for one receiver: slots in segments of shared memory, which
// become free in any order. What the receiver says of them can only harm itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "transport/shared_memory/outbox.hpp"
#include "transport/shared_memory/region.hpp"

namespace millrace::shared_memory {

/// The same size again finds the same slots: sizes are rounded up by at most an eighth, small ones
/// to a power of two.
[[nodiscard]] std::size_t slot_bytes(std::size_t bytes);

/// Thread-safety: externally synchronised.
class Slots {
 public:
  struct Taken {
    Place place;
    std::byte* memory;
  };

  /// A free slot of at most twice the size. Nothing when there is none.
  [[nodiscard]] std::optional<Taken> take(std::size_t bytes);

  /// What was released lies free again.
  void reclaim(const Outbox& receivers);

  /// Whether there may be more slots, and memory for more slots of such a size. The receiver must
  /// have it before it hears of a slot in it.
  [[nodiscard]] bool can_grow() const { return slots_.size() < kSlots; }
  [[nodiscard]] static Region segment_for(std::size_t bytes);
  void add(Mapping segment, std::size_t bytes);

  [[nodiscard]] std::uint32_t segments() const {
    return static_cast<std::uint32_t>(segments_.size());
  }

 private:
  struct Slot {
    std::uint32_t segment;
    std::uint32_t use;
    std::uint64_t offset;
    std::uint64_t capacity;
  };

  std::vector<Mapping> segments_;
  std::vector<Slot> slots_;
  std::multimap<std::uint64_t, std::uint32_t> free_;  // slots by capacity
  std::vector<std::uint32_t> busy_;
};

}  // namespace millrace::shared_memory
