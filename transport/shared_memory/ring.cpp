// Each value of an entry is loaded once, so a later change by the peer has no effect.
#include "transport/shared_memory/ring.hpp"

#include <bit>

#include "millrace/core/error.hpp"

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

}  // namespace millrace::shared_memory
