// Ranks that connect and leave. A connection carries descriptors only, and its end is the end of
// the peer: no rank connects again.
#include <algorithm>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <utility>

#include "millrace/transport/listener.hpp"
#include "transport/shared_memory/events.hpp"
#include "transport/shared_memory/region_loop.hpp"

namespace millrace::shared_memory {

namespace {

constexpr std::size_t kMostSegments = kSlots;
constexpr std::size_t kMostUnknown = 16;  // who have come and not said who they are

template <class Content>
void map_foreign(Foreign<Content>& foreign, const Descriptor& file) {
  foreign.memory = map_region(file, sizeof(Content), Sharing::Read);
  foreign.content = reinterpret_cast<const Content*>(foreign.memory.data());
}

}  // namespace

void RegionLoop::accept_guests() {
  for (Descriptor guest = accept_from(socket_.number()); guest;
       guest = accept_from(socket_.number())) {
    if (!is_ours(guest.number())) continue;
    watch_descriptor(guest.number(), EventKind::Guest, {});
    guests_.push_back(std::move(guest));
  }
  std::vector<Descriptor> guests = std::exchange(guests_, {});
  for (Descriptor& guest : guests)
    if (!read_guest(guest)) guests_.push_back(std::move(guest));
  // A rank says who it is as it comes: who has long said nothing is none.
  const std::size_t most = neighbours_.size() + kMostUnknown;
  if (guests_.size() > most)
    guests_.erase(guests_.begin(), guests_.end() - static_cast<std::ptrdiff_t>(most));
}

/// True when the guest has become a neighbour, or is none.
bool RegionLoop::read_guest(Descriptor& guest) {
  ReceivedMessage received = receive_message(guest.number());
  if (received.arrival == Arrival::Nothing) return false;
  const DescriptorMessage& message = received.message;
  const bool known = received.arrival == Arrival::Came && message.version == kProtocolVersion &&
                     message.kind == DescriptorMessageKind::Introduction &&
                     message.job == options_.job && message.epoch == options_.epoch &&
                     message.destination == options_.rank.value && message.source >= 0 &&
                     message.source < options_.world && message.source != options_.rank.value &&
                     may_share(Rank{message.source}) &&
                     received.descriptors.size() == kMostDescriptors;
  ::epoll_ctl(events_.number(), EPOLL_CTL_DEL, guest.number(), nullptr);
  if (known) take_introduction(std::exchange(guest, {}), std::move(received));
  return true;
}

void RegionLoop::take_introduction(Descriptor socket, ReceivedMessage introduction) {
  const Rank rank{introduction.message.source};
  Neighbour& peer = *neighbours_[rank.index()];
  if (peer.reader || peer.gone) return;  // that place is taken
  try {
    map_foreign(peer.board, introduction.descriptors[0]);
    map_foreign(peer.inbox, introduction.descriptors[1]);
    if (!hang_up_bell(introduction.descriptors[2].number()))
      throw TransportError("what was given as a bell is none");
  } catch (const TransportError& error) {
    return refuse_memory(peer, error);
  }
  peer.bell = std::move(introduction.descriptors[2]);
  peer.reader.emplace(
      peer.inbox.content->ring,
      FrameExpectation{
          options_.job, options_.epoch, rank, options_.rank, options_.largest_payload});
  peer.from = std::move(socket);
  peer.process = process_of(peer.from.number());
  const auto now = Clock::now();
  monitor_.heard(rank, now);
  dialled(rank).send_queue->content->met.store(1, std::memory_order_release);
  wake(peer.bell.number());
  if (peer.gone) return;
  watch_descriptor(peer.from.number(), EventKind::From, rank);
  if (peer.process) watch_descriptor(peer.process.number(), EventKind::Process, rank);
  ++introductions_;
  if (carrying_) carrying_->introduced();
}

/// False at the end of the connection.
bool RegionLoop::read_segments(Neighbour& from) {
  for (;;) {
    const ReceivedMessage received = receive_message(from.from.number());
    if (received.arrival == Arrival::Nothing) return true;
    if (received.arrival == Arrival::Ended) return false;
    const DescriptorMessage& message = received.message;
    if (received.arrival != Arrival::Came || message.kind != DescriptorMessageKind::Segment ||
        message.number != from.reader->segments() || message.number >= kMostSegments ||
        received.descriptors.size() != 1)
      throw TransportError("a descriptor message of rank " + std::to_string(from.rank.value) +
                           " is not a segment of shared memory");
    from.reader->add(map_region(received.descriptors.front(), message.bytes, Sharing::Write));
  }
}

/// The process has ended, or has given its endpoint up. A rank that has read all that we sent, and
/// received our shutdown message, has nothing left to send.
void RegionLoop::hung_up(Neighbour& peer) {
  if (peer.gone) return;
  if (!peer.reader) accept_guests();  // it may have said something before
  if (peer.gone) return;
  sweep(peer);
  const bool owes = !peer.left && !(leaving_ && is_settled(peer));
  close(peer);
  if (owes && !stopped_ && !carrying_)
    fail(watch_.lost(peer.rank, "its connection ended", Clock::now()));
}

bool RegionLoop::may_share(Rank rank) const {
  return !carrying_ || std::ranges::find(carrying_->between, rank) != carrying_->between.end();
}

bool RegionLoop::carries(const Neighbour& peer) {
  return peer.reader && !peer.gone && peer.inbox.content->met.load(std::memory_order_acquire) != 0;
}

/// As far as that goes without waiting.
void RegionLoop::meet(Rank rank) {
  guarded([&] {
    static_cast<void>(dialled(rank));
    take_events(0);
  });
}

bool RegionLoop::receives_from(Rank from) noexcept {
  if (!may_share(from)) return false;
  const std::lock_guard lock(turn_);
  const Neighbour& peer = *neighbours_[from.index()];
  if (!peer.reader && !stopped_) meet(from);
  return peer.reader && !peer.gone && !stopped_;
}

bool RegionLoop::carries_to(Rank to) noexcept {
  if (!may_share(to)) return false;
  const std::lock_guard lock(turn_);
  const Neighbour& peer = *neighbours_[to.index()];
  if (!carries(peer) && !stopped_) meet(to);
  return carries(peer) && !stopped_;
}

std::vector<Rank> RegionLoop::reached() {
  const std::lock_guard lock(turn_);
  std::vector<Rank> ranks;
  for (const Neighbour* each : known_)
    if (!each->gone) ranks.push_back(each->rank);
  std::ranges::sort(ranks);
  return ranks;
}

void RegionLoop::close(Neighbour& peer) {
  peer.gone = true;
  for (Descriptor* each : {&peer.to, &peer.from, &peer.process}) {
    // Also where a child of ours has a copy.
    if (*each) ::epoll_ctl(events_.number(), EPOLL_CTL_DEL, each->number(), nullptr);
    *each = {};
  }
}

}  // namespace millrace::shared_memory
