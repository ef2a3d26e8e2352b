// Frames from one rank to another: a ring that its writer alone can write, of which the reader
// believes nothing. It copies an entry out before it looks at it, and holds the counter to what a
// ring can be. A writer that dies inside an entry has not counted it, so it is not read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/shared_memory/region.hpp"
#include "transport/wire/envelope.hpp"
#include "transport/wire/frame.hpp"

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
  /// Whether all is read when `consumed` are.
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

  /// The next entry, as it was written or damaged. Throws TransportError when
  /// the counter is none that a writer can have counted to.
  [[nodiscard]] std::optional<RingEntry> take();

 private:
  const RingMemory* memory_;
  std::uint64_t consumed_ = 0;
};

/// Thread-safety: externally synchronised, except `has_news`.
class FrameReader {
 public:
  struct Frame {
    Refusal refusal = Refusal::None;  ///< the rest is meant when there is none
    DataHeader header;
    Place place;
    std::span<std::byte> bytes;
    bool ends_message = false;
  };

  /// `memory` must outlive this.
  FrameReader(const RingMemory& memory, const FrameExpectation& expected)
      : ring_(memory), judge_(expected) {}

  [[nodiscard]] bool has_news() const { return ring_.has_news(); }
  [[nodiscard]] std::uint64_t consumed() const { return ring_.consumed(); }

  [[nodiscard]] std::size_t segments() const { return segments_.size(); }
  [[nodiscard]] const std::shared_ptr<Mapping>& segment(const Place& place) const {
    return segments_[place.segment];
  }
  void add(Mapping segment) { segments_.push_back(std::make_shared<Mapping>(std::move(segment))); }

  /// Whether a frame lies in a segment that is not here, though it was given before the frame.
  [[nodiscard]] bool lacks(const RingEntry& entry) const {
    return has_bytes(entry.place) && entry.place.segment >= segments_.size();
  }

  /// The next entry of the ring, not checked yet. Throws TransportError as RingReader::take.
  [[nodiscard]] std::optional<RingEntry> next() { return ring_.take(); }

  /// Checks it. Nothing is retried: memory loses nothing on the way, so what is wrong was
  /// written so. Throws TransportError for a place outside of all segments.
  [[nodiscard]] Frame read(const RingEntry& entry);

 private:
  static bool has_bytes(const Place& place) {
    return place.slot != Place::kNowhere || place.bytes != 0;
  }
  [[nodiscard]] std::span<std::byte> bytes_at(const Place& place) const;

  RingReader ring_;
  FrameJudge judge_;
  std::vector<std::shared_ptr<Mapping>> segments_;
};

}  // namespace millrace::shared_memory
