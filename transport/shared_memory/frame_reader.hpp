// What a rank reads of another's memory: the frames of its ring with their payloads, held to the
// bounds of the segments that it gave and to all that a frame between processes is held to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/shared_memory/region.hpp"
#include "transport/shared_memory/ring.hpp"
#include "transport/wire/judge.hpp"

namespace millrace::shared_memory {

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

  /// The next entry of the ring, not judged yet. Throws TransportError as RingReader::take.
  [[nodiscard]] std::optional<RingEntry> next() { return ring_.take(); }

  /// Judges it. Nothing is retried: memory loses nothing on the way, so whatever is wrong was
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
