// Where a sender writes the payloads for one receiver: slots in segments of shared memory, which
// become free in any order. What the receiver says of them can only harm itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "millrace/core/ids.hpp"
#include "transport/shared_memory/region.hpp"
#include "transport/shared_memory/send_queue.hpp"

namespace millrace::shared_memory {

/// The same size again finds the same slots: sizes are rounded up by at most an eighth, small ones
/// to a power of two.
[[nodiscard]] std::size_t slot_bytes(std::size_t bytes);

/// Of planned slots at most, so that there are others for what no plan has.
inline constexpr std::size_t kMostPlanned = kSlots / 4;

/// Whose payloads: those of passes have slots that were planned.
enum class Payloads : bool { OfPasses, OfCollectives };

/// Thread-safety: externally synchronised.
class Slots {
 public:
  struct Taken {
    Place place;
    std::byte* memory;
  };

  /// A free slot: of passes a planned one, of any size from `bytes` on, or else, as of collectives,
  /// another of at most twice the size. Nothing when there is none.
  [[nodiscard]] std::optional<Taken> take(std::size_t bytes, Payloads whose);

  /// What was released lies free again.
  void reclaim(const SendQueue& receivers);

  /// Whether there may be more slots, and memory for more slots of such a size. The receiver must
  /// have it before a frame names a slot in it.
  [[nodiscard]] bool can_grow() const { return slots_.size() < kSlots; }
  [[nodiscard]] static Region segment_for(std::size_t bytes);
  void add(Mapping segment, std::size_t bytes, Payloads whose);

  /// The same of planned slots.
  [[nodiscard]] bool can_plan(const ChannelTensors& tensors) const {
    return slots_.size() + static_cast<std::size_t>(tensors.most) <= kMostPlanned;
  }
  [[nodiscard]] static std::size_t planned_bytes(const ChannelTensors& tensors);
  void plan(Mapping segment, const ChannelTensors& tensors);

  /// Of all segments that were made for such payloads.
  [[nodiscard]] std::size_t bytes(Payloads whose) const { return bytes_[index_of(whose)]; }

  [[nodiscard]] std::uint32_t segments() const {
    return static_cast<std::uint32_t>(segments_.size());
  }

 private:
  struct Slot {
    std::uint32_t segment;
    std::uint32_t use;
    std::uint64_t offset;
    std::uint64_t capacity;
    bool planned;
  };
  using Free = std::multimap<std::uint64_t, std::uint32_t>;  // slots by capacity

  static std::size_t index_of(Payloads whose) { return whose == Payloads::OfPasses ? 0 : 1; }
  void cut(Mapping segment, std::size_t capacity, bool planned);
  Free& free_like(const Slot& slot) { return slot.planned ? planned_ : free_; }
  Taken use(Free& free, Free::iterator found, std::size_t bytes);

  std::vector<Mapping> segments_;
  std::vector<Slot> slots_;
  Free planned_;
  Free free_;
  std::vector<Free::node_type> busy_;
  std::array<std::size_t, 2> bytes_{};
};

}  // namespace millrace::shared_memory
