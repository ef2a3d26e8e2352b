#include "transport/shared_memory/slots.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "millrace/transport/shared_memory.hpp"

namespace millrace::shared_memory {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSmall = std::size_t{64} << 10U;     // powers of two up to here
constexpr std::size_t kSegment = std::size_t{256} << 10U;  // of several small slots

std::size_t slots_of(std::size_t capacity) {
  return std::max<std::size_t>(1, kSegment / capacity);
}

}  // namespace

std::size_t slot_bytes(std::size_t bytes) {
  if (bytes <= kSmall) return std::max(kPage, std::bit_ceil(bytes));
  const std::size_t unit = std::max(kPage, std::bit_ceil(bytes) / 16);
  return (bytes + unit - 1) / unit * unit;
}

std::optional<Slots::Taken> Slots::take(std::size_t bytes, Payloads whose) {
  if (whose == Payloads::OfPasses)
    if (const auto found = planned_.lower_bound(bytes); found != planned_.end())
      return use(planned_, found, bytes);
  const auto found = free_.lower_bound(bytes);
  if (found == free_.end() || found->first > 2 * slot_bytes(bytes)) return std::nullopt;
  return use(free_, found, bytes);
}

Slots::Taken Slots::use(Free& free, Free::iterator found, std::size_t bytes) {
  const std::uint32_t number = found->second;
  busy_.push_back(free.extract(found));
  Slot& slot = slots_[number];
  ++slot.use;
  return {{slot.offset, bytes, slot.segment, number, slot.use},
          segments_[slot.segment].data() + slot.offset};
}

void Slots::reclaim(const SendQueue& receivers) {
  std::erase_if(busy_, [&](Free::node_type& number) {
    const Slot& slot = slots_[number.mapped()];
    const auto released = receivers.released[number.mapped()].load(std::memory_order_acquire);
    if (released == slot.use) free_like(slot).insert(std::move(number));
    return released == slot.use;
  });
}

Region Slots::segment_for(std::size_t bytes) {
  const std::size_t capacity = slot_bytes(bytes);
  return make_region(capacity * slots_of(capacity), Sharing::Write);
}

void Slots::add(Mapping segment, std::size_t bytes, Payloads whose) {
  bytes_[index_of(whose)] += segment.bytes();
  cut(std::move(segment), slot_bytes(bytes), false);
}

std::size_t Slots::planned_bytes(const ChannelTensors& tensors) {
  return slot_bytes(tensors.bytes) * static_cast<std::size_t>(tensors.most);
}

void Slots::plan(Mapping segment, const ChannelTensors& tensors) {
  bytes_[index_of(Payloads::OfPasses)] += segment.bytes();
  cut(std::move(segment), slot_bytes(tensors.bytes), true);
}

void Slots::cut(Mapping segment, std::size_t capacity, bool planned) {
  const std::uint32_t number = segments();
  for (std::size_t i = 0; i < segment.bytes() / capacity && can_grow(); ++i) {
    const Slot slot{number, 0, i * capacity, capacity, planned};
    free_like(slot).emplace(capacity, static_cast<std::uint32_t>(slots_.size()));
    slots_.push_back(slot);
  }
  segments_.push_back(std::move(segment));
}

}  // namespace millrace::shared_memory

namespace millrace {

std::size_t planned_shared_bytes(std::span<const ChannelDepth> depths, Rank source, Rank receiver) {
  std::size_t bytes = 0;
  for (const ChannelDepth& channel : depths)
    if (channel.source == source && channel.destination == receiver)
      for (const ChannelTensors& tensors : channel.tensors)
        bytes += shared_memory::Slots::planned_bytes(tensors);
  return bytes;
}

}  // namespace millrace
