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
  Frame frame{.header = {}, .place = entry.place, .bytes = bytes_at(entry.place)};
  frame.refusal = judge_.take(entry.header, frame.bytes, frame.header);
  frame.ends_message = frame.refusal == Refusal::None && !judge_.inside_message();
  return frame;
}

}  // namespace millrace::shared_memory
