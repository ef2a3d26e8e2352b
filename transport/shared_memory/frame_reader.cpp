// Arithmetic on received numbers never overflows.
#include "transport/shared_memory/frame_reader.hpp"

#include <string>

#include "millrace/core/error.hpp"
#include "transport/shared_memory/outbox.hpp"

namespace millrace::shared_memory {

std::span<std::byte> FrameReader::bytes_at(const Place& place) const {
  if (!has_bytes(place)) return {};
  if (place.segment >= segments_.size())
    throw TransportError("a frame lies in segment " + std::to_string(place.segment) + " of " +
                         std::to_string(segments_.size()));
  const Mapping& segment = *segments_[place.segment];
  if (place.slot >= kSlots || place.offset % kAlignment != 0 || place.offset > segment.bytes() ||
      place.bytes > segment.bytes() - place.offset)
    throw TransportError("a frame of " + std::to_string(place.bytes) + " bytes at " +
                         std::to_string(place.offset) + " lies outside of its segment of " +
                         std::to_string(segment.bytes()));
  return {segment.data() + place.offset, static_cast<std::size_t>(place.bytes)};
}

FrameReader::Frame FrameReader::read(const RingEntry& entry) {
  const std::span<std::byte> bytes = bytes_at(entry.place);
  const auto verdict = link_.take(entry.header, bytes);
  const bool taken = verdict.answer == Answer::Accept;
  return {.refusal = taken ? Refusal::None : verdict.refusal,
          .header = verdict.header,
          .place = entry.place,
          .bytes = bytes,
          .ends_message = taken && !link_.inside_message()};
}

}  // namespace millrace::shared_memory
