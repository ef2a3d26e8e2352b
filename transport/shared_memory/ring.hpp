// Frames from one rank to another: a ring that its writer alone can write, of which the reader
// believes nothing. It copies an entry out before it looks at it, and holds the counter to what a
// ring can be. A writer that dies inside an entry has not counted it: nobody reads it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transport/wire/envelope.hpp"

namespace millrace::shared_memory {

inline constexpr std::uint64_t kRingEntries = 256;

/// Where the payload of a frame lies in the sender's segments; a frame without bytes has no slot.
struct Place {
  static constexpr std::uint32_t kNowhere = 0xFFFF'FFFF;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t segment = kNowhere;
  std::uint32_t slot = kNowhere;
  std::uint32_t use = 0;  ///< the how manieth of the slot: what the receiver returns
  std::uint32_t unused = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

/// One tensor on its way: a data frame's header (wire/frame.hpp) and the place of its bytes.
struct RingEntry {
  FrameBytes header{};
  Place place;
};

inline constexpr std::size_t kEntryWords = 24;
using EntryWords = std::array<std::atomic<std::uint64_t>, kEntryWords>;

/// What lies in the memory. Nothing but zeros is an empty ring.
struct RingMemory {
  /// Entries written so far. Sequentially consistent, and so is Board::asleep: of a writer that
  /// looks whether its reader sleeps, and a reader that lies down, one sees the other.
  alignas(64) std::atomic<std::uint64_t> published;
  alignas(64) std::array<EntryWords, kRingEntries> entries;
};

/// Thread-safety: externally synchronised.
class RingWriter {
 public:
  /// `memory` must outlive this.
  explicit RingWriter(RingMemory& memory) : memory_(&memory) {}

  /// What the reader says it has read. Throws TransportError for a number that cannot be.
  void heed(std::uint64_t consumed);

  [[nodiscard]] bool full() const { return published_ - consumed_ == kRingEntries; }
  [[nodiscard]] std::uint64_t consumed() const { return consumed_; }
  /// Whether so many read would be all.
  [[nodiscard]] bool settled_at(std::uint64_t consumed) const { return consumed == published_; }

  /// Into a ring that is not full.
  void put(const RingEntry& entry);

 private:
  RingMemory* memory_;
  std::uint64_t published_ = 0;
  std::uint64_t consumed_ = 0;
};

/// Thread-safety: externally synchronised, except `has_news`.
class RingReader {
 public:
  /// `memory` must outlive this.
  explicit RingReader(const RingMemory& memory) : memory_(&memory) {}

  [[nodiscard]] bool has_news() const { return memory_->published.load() != consumed_; }
  [[nodiscard]] std::uint64_t consumed() const { return consumed_; }

  /// The next entry, as it was written or as whoever damaged it left it. Throws TransportError when
  /// the counter is none that a writer can have counted to.
  [[nodiscard]] std::optional<RingEntry> take();

 private:
  const RingMemory* memory_;
  std::uint64_t consumed_ = 0;
};

}  // namespace millrace::shared_memory
