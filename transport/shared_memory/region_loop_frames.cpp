// Frames in and out. What is published is whole; what is read was copied out, and is held to
// everything that a frame between processes is held to.
#include <cstring>
#include <utility>

#include "transport/link/endpoint.hpp"
#include "transport/shared_memory/region_loop.hpp"

namespace millrace::shared_memory {

namespace {

/// Below this a copy costs less than keeping the sender's slot.
constexpr std::size_t kInPlaceBytes = std::size_t{16} << 10U;

/// A receiver that holds more slots than this copies what else comes, so that the sender never runs
/// out of them.
constexpr std::uint32_t kMostHeld = kSlots / 2;

void give_back(OwnSendQueue& send_queue, const Place& place) noexcept {
  // Our reads are over before the sender may write there again.
  send_queue.content->released[place.slot].store(place.use, std::memory_order_release);
}

void end_loan(void* /*data*/, std::size_t /*bytes*/, void* owner) noexcept {
  std::unique_ptr<Loan> loan(static_cast<Loan*>(owner));
  const auto send_queue = std::move(loan->send_queue);
  loan->segment.reset();
  give_back(*send_queue, loan->place);
  send_queue->loans.put(std::move(loan));
  send_queue->held.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

/// What a rank says of itself in a way that no rank does ends the epoch.
template <class Body>
void RegionLoop::checked(const Neighbour& neighbour, const Body& body) {
  try {
    body();
  } catch (const TransportError& error) {
    refuse_memory(neighbour, error);
  }
}

void RegionLoop::refuse_memory(const Neighbour& neighbour, const TransportError& reason) {
  fail(FailureCause::Protocol,
       "rank " + std::to_string(options_.rank.value) + " refuses the memory of rank " +
           std::to_string(neighbour.rank.value) + ": " + reason.what());
}

/// Publishes as much of what waits as there is room for.
void RegionLoop::flush(Neighbour& to) {
  if (to.waiting.empty() || stopped_) return;
  if (to.reader) {
    checked(to, [&] { to.writer->heed(to.inbox.content->consumed); });
    to.slots.reclaim(*to.inbox.content);
  }
  bool posted = false;
  while (!stopped_ && !to.waiting.empty() && !to.writer->full() && post(to, to.waiting.front())) {
    to.waiting.front().tensor = {};
    to.spare.splice(to.spare.end(), to.waiting, to.waiting.begin());
    posted = true;
  }
  if (posted) ring_bell(to, Sleep::ForFrames);
}

/// False when no slot can be had now.
bool RegionLoop::post(Neighbour& to, Waiting& waiting) {
  RingEntry entry;
  const std::size_t bytes = waiting.header.payload_bytes;
  if (bytes != 0) {
    const auto slot = slot_for(to, waiting.header);
    if (!slot) return false;
    const std::span<const std::byte> source(static_cast<const std::byte*>(waiting.tensor.data()),
                                            bytes);
    waiting.header.hashed = options_.hash_payloads;
    if (options_.hash_payloads)
      waiting.header.payload_hash = copy_hashed(source, slot->memory);
    else
      std::memcpy(slot->memory, source.data(), bytes);
    entry.place = slot->place;
  }
  waiting.header.sequence = to.sequence++;
  entry.header = encode(waiting.header);
  to.writer->put(entry);
  return true;
}

/// The receiver is given a new segment before a frame names a slot in it.
std::optional<Slots::Taken> RegionLoop::slot_for(Neighbour& to, const DataHeader& header) {
  const Payloads whose =
      header.tag.direction == Direction::Collective ? Payloads::OfCollectives : Payloads::OfPasses;
  const std::size_t bytes = header.payload_bytes;
  if (whose == Payloads::OfPasses) make_planned(to);
  if (auto slot = to.slots.take(bytes, whose)) return slot;
  if (!to.slots.can_grow()) return std::nullopt;
  Region segment = Slots::segment_for(bytes);
  if (!give_segment(to, segment)) return std::nullopt;
  to.slots.add(std::move(segment.memory), bytes, whose);
  return to.slots.take(bytes, whose);
}

/// All at once, before the first of them is needed: no later step waits for memory.
void RegionLoop::make_planned(Neighbour& to) {
  while (!to.planned.empty()) {
    const ChannelTensors& tensors = to.planned.back();
    if (to.slots.can_plan(tensors)) {
      Region segment = make_region(Slots::planned_bytes(tensors), Sharing::Write);
      if (!give_segment(to, segment)) return;
      to.slots.plan(std::move(segment.memory), tensors);
    }
    to.planned.pop_back();
  }
}

bool RegionLoop::give_segment(Neighbour& to, const Region& segment) {
  const DescriptorMessage message{DescriptorMessageKind::Segment,
                                  options_.epoch,
                                  options_.job,
                                  options_.rank.value,
                                  to.rank.value,
                                  segment.memory.bytes(),
                                  to.slots.segments(),
                                  0};
  return send_message(to.to.number(), message, {segment.file.number()});
}

/// All that a rank has written since the last look.
void RegionLoop::sweep(Neighbour& from) {
  if (stopped_ || from.gone || !from.reader) return;
  if (carrying_) {
    drain(from);
    return flush(from);
  }
  const Board& board = *from.board.content;
  if (const std::uint32_t stop = board.stop; stop != 0) {
    const auto last = static_cast<std::uint32_t>(FailureCause::Protocol);
    const std::size_t bytes = std::min<std::size_t>(board.text_bytes, board.text.size());
    return fail(static_cast<FailureCause>(std::min(stop - 1, last)), {board.text.data(), bytes});
  }
  // Who has left wrote all before: read in this order, nothing is missed.
  const bool left = board.left != 0;
  drain(from);
  flush(from);
  if (stopped_ || !left || std::exchange(from.left, true)) return;
  monitor_.left(from.rank);
  mailbox_.leave(from.rank);
}

void RegionLoop::drain(Neighbour& from) {
  const std::uint64_t before = from.reader->consumed();
  checked(from, [&] {
    while (const auto entry = from.reader->next()) {
      take_frame(from, *entry);
      if (stopped_) return;
    }
  });
  if (stopped_ || from.reader->consumed() == before) return;
  from.send_queue->content->consumed.store(from.reader->consumed());
  ring_bell(from, Sleep::ForRoom);
}

void RegionLoop::take_frame(Neighbour& from, const RingEntry& entry) {
  if (from.reader->lacks(entry)) static_cast<void>(read_segments(from));
  const FrameReader::Frame frame = from.reader->read(entry);
  if (frame.refusal != Refusal::None)
    return fail(FailureCause::Protocol, refused_frame(options_.rank, from.rank, frame.refusal));
  if (frame.header.tensor_count > 0) from.assembling.push_back(tensor_of(from, frame));
  if (!frame.ends_message) return;
  if (!mailbox_.deliver(from.rank, frame.header.tag, std::exchange(from.assembling, {})))
    fail(FailureCause::Protocol, surplus_message(options_.rank, from.rank, frame.header.tag));
}

Tensor RegionLoop::tensor_of(Neighbour& from, const FrameReader::Frame& frame) {
  const DataHeader& header = frame.header;
  if (header.absent) return {};
  if (frame.bytes.size() >= kInPlaceBytes && from.send_queue->held < kMostHeld) {
    auto loan = from.send_queue->loans.take();
    *loan = {from.reader->segment(frame.place), from.send_queue, frame.place};
    Tensor tensor(header.dtype, header.dims, frame.bytes.data(), end_loan, loan.get());
    static_cast<void>(loan.release());  // the tensor's, from now on
    from.send_queue->held.fetch_add(1, std::memory_order_relaxed);
    return tensor;
  }
  Tensor tensor = pool_.make(header.dtype, header.dims);
  if (frame.bytes.empty()) return tensor;
  std::memcpy(tensor.data(), frame.bytes.data(), frame.bytes.size());
  give_back(*from.send_queue, frame.place);
  return tensor;
}

}  // namespace millrace::shared_memory
