// Each value of an entry is loaded once, so a later change by the peer has no effect.
#include "transport/shared_memory/ring.hpp"

#include <bit>
#include <string>

#include "millrace/core/error.hpp"
#include "transport/shared_memory/send_queue.hpp"

namespace millrace::shared_memory {

namespace {

using Words = std::array<std::uint64_t, kEntryWords>;
static_assert(sizeof(RingEntry) == sizeof(Words));
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace

void RingWriter::heed(std::uint64_t consumed) {
  if (consumed < consumed_ || consumed > published_)
    throw TransportError("the reader of a ring says that it has read " + std::to_string(consumed) +
                         " frames, where it had read " + std::to_string(consumed_) + " of " +
                         std::to_string(published_));
  consumed_ = consumed;
}

void RingWriter::put(const RingEntry& entry) {
  const auto words = std::bit_cast<Words>(entry);
  EntryWords& at = memory_->entries[published_ % kRingEntries];
  for (std::size_t i = 0; i < kEntryWords; ++i) at[i].store(words[i], std::memory_order_relaxed);
  memory_->published.store(++published_);
}

std::optional<RingEntry> RingReader::take() {
  const std::uint64_t published = memory_->published.load();
  if (published == consumed_) return std::nullopt;
  if (published - consumed_ > kRingEntries)
    throw TransportError("a ring of " + std::to_string(kRingEntries) + " frames claims to hold " +
                         std::to_string(published - consumed_));
  Words words{};
  const EntryWords& at = memory_->entries[consumed_ % kRingEntries];
  for (std::size_t i = 0; i < kEntryWords; ++i) words[i] = at[i].load(std::memory_order_relaxed);
  ++consumed_;
  return std::bit_cast<RingEntry>(words);
}

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
