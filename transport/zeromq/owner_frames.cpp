// Frames in and out. Whoever is not a rank of this job is dropped before a byte is looked at; what
// a known rank sends is judged by its link and answered by the table.
#include <algorithm>
#include <cstring>

#include "transport/zeromq/owner.hpp"

namespace millrace::zeromq {

namespace {

/// Below this, copying into the network layer is cheaper than lending it our memory.
constexpr std::size_t kCopyBytes = 2048;
constexpr int kFramesPerTurn = 256;
constexpr std::size_t kLongestText = 4000;
constexpr std::uint64_t kOldest = std::uint64_t{1} << 60U;  // nanoseconds

std::span<const std::byte> bytes_of(const zmq::message_t& message) {
  return {message.data<std::byte>(), message.size()};
}

void landed(void*, void* hint) {
  // Runs on a thread of the network layer: nothing but the release that sweep() acquires.
  static_cast<std::atomic<int>*>(hint)->fetch_sub(1, std::memory_order_release);
}

}  // namespace

bool Owner::read(zmq::socket_t& socket, Arrival& arrival) {
  arrival.parts = 0;
  if (!socket.recv(arrival.identity, zmq::recv_flags::dontwait)) return false;
  zmq::message_t rest;
  arrival.parts = 1;
  for (bool more = arrival.identity.more(); more; ++arrival.parts) {
    zmq::message_t& slot = arrival.parts == 1   ? arrival.header
                           : arrival.parts == 2 ? arrival.payload
                                                : rest;
    if (!socket.recv(slot, zmq::recv_flags::dontwait)) break;
    more = slot.more();
  }
  return true;
}

Owner::Peer* Owner::sender_of(Arrival& arrival) {
  const int rank = rank_of(arrival.identity, options_.world);
  Peer* peer = rank < 0 ? nullptr : peers_[static_cast<std::size_t>(rank)].get();
  if (peer != nullptr && options_.link == ZeroMqLink::Tcp && !options_.insecure) {
    // The name must be that of the key: a known rank may not speak for another.
    try {
      const char* user = arrival.header.gets("User-Id");
      if (user == nullptr || arrival.identity.to_string_view() != user) peer = nullptr;
    } catch (const zmq::error_t&) {
      peer = nullptr;
    }
  }
  if (peer == nullptr) ++strangers_;
  return peer;
}

void Owner::read_data() {
  Arrival arrival;
  for (int i = 0; i < kFramesPerTurn && read(listeners_.data, arrival); ++i)
    if (Peer* peer = sender_of(arrival)) take_data(*peer, arrival);
}

void Owner::take_data(Peer& peer, Arrival& arrival) {
  if (stopped_) return;
  const auto verdict = arrival.parts == 3
                           ? peer.in.take(bytes_of(arrival.header), bytes_of(arrival.payload))
                           : peer.in.refuse(Refusal::PartCount);
  switch (verdict.answer) {
    case Answer::Drop:
      return;
    case Answer::DropAcknowledge:
      if (verdict.header.kind == FrameKind::Probe) peer.peers_question = verdict.header.tag.step;
      peer.ack_due = true;
      return;
    case Answer::AskAgain:
      acknowledge(peer, FrameKind::Nack);
      return;
    case Answer::Abort:
      fail(FailureCause::Protocol,
           "rank " + std::to_string(options_.rank.value) + " refuses a frame of rank " +
               std::to_string(peer.rank.value) + ": " + name_of(verdict.refusal));
      return;
    case Answer::Accept:
      break;
  }
  const auto now = Clock::now();
  board_.heard(peer.rank, now);
  if (peer.unacknowledged++ == 0) peer.ack_at = now + kAckDelay;
  peer.unacknowledged_bytes += verdict.header.payload_bytes;
  if (verdict.header.tensor_count > 0 || !verdict.header.absent)
    peer.assembling.push_back({verdict.header, std::move(arrival.payload)});
  if (peer.in.inside_message()) return;
  Message message;
  message.swap(peer.assembling);
  if (!desk_.deliver(peer.rank, verdict.header.tag, std::move(message)))
    fail(FailureCause::Protocol,
         "rank " + std::to_string(peer.rank.value) + " sent the " + to_string(verdict.header.tag) +
             " twice, or more than the channel to rank " + std::to_string(options_.rank.value) +
             " holds");
}

void Owner::read_control() {
  Arrival arrival;
  for (int i = 0; i < kFramesPerTurn && read(listeners_.control, arrival); ++i) {
    Peer* peer = sender_of(arrival);
    if (peer == nullptr || arrival.parts != 3) continue;
    const FrameExpectation expected{
        options_.job, options_.epoch, peer->rank, options_.rank, 2 * kLongestText};
    FrameHeader header;
    // Everything said here is said again if it is lost, so damage is simply dropped.
    if (decode(bytes_of(arrival.header), arrival.payload.size(), expected, header) == Refusal::None)
      obey(*peer, header, arrival.payload);
  }
}

void Owner::obey(Peer& peer, const FrameHeader& header, const zmq::message_t& payload) {
  const auto now = Clock::now();
  board_.heard(peer.rank, now);
  switch (header.kind) {
    case FrameKind::Ack:
    case FrameKind::Nack: {
      if (header.sequence > peer.out.oldest()) peer.probe_interval = options_.probe_after;
      peer.out.acknowledge(header.sequence);
      TakenCounts taken{};
      for (std::size_t i = 0; i < std::min(taken.size(), header.dims.size()); ++i)
        taken[i] = static_cast<std::uint64_t>(header.dims[i]);
      peer.answered = std::max(peer.answered, std::min(header.tag.step, peer.question));
      desk_.credit(peer.rank, taken, header.tag.step);
      if (header.kind == FrameKind::Nack && !stopped_)
        peer.out.each_from(header.sequence, [&](RetainedFrame& frame) { transmit(peer, frame); });
      return;
    }
    case FrameKind::Progress: {
      ActivityWords words{};
      if (payload.size() != sizeof words) return;
      std::memcpy(words.data(), payload.data(), sizeof words);
      Activity activity = decode(words);
      activity.since = now - std::chrono::nanoseconds(std::min(header.tag.step, kOldest));
      board_.note(peer.rank, activity);
      return;
    }
    case FrameKind::Abort:
      if (desk_.fail(static_cast<FailureCause>(std::clamp(header.tag.slice.value, 0, 3)),
                     payload.to_string()))
        stopped_ = Stop{FailureCause::Cancelled, {}};  // the one who found out tells the others
      return;
    case FrameKind::Bye:
      peer.out.acknowledge(header.sequence);
      peer.left = true;
      board_.left(peer.rank);
      desk_.leave(peer.rank);
      say(peer, header_to(peer, FrameKind::ByeAck));
      return;
    case FrameKind::ByeAck:
      peer.bye_acknowledged = true;
      board_.left(peer.rank);
      return;
    default:
      return;  // nothing else is said on this socket
  }
}

void Owner::transmit(Peer& peer, RetainedFrame& frame) {
  zmq::message_t head(frame.header.data(), frame.header.size());
  if (!peer.data.send(head, zmq::send_flags::sndmore | zmq::send_flags::dontwait)) return;
  const std::size_t size = frame.tensor ? frame.tensor.bytes() : 0;
  if (size <= kCopyBytes) {
    zmq::message_t body(frame.tensor.data(), size);
    peer.data.send(body, zmq::send_flags::dontwait);
    return;
  }
  frame.flights.fetch_add(1, std::memory_order_relaxed);  // only this thread raises it
  zmq::message_t body(frame.tensor.data(), size, landed, &frame.flights);
  peer.data.send(body, zmq::send_flags::dontwait);  // a refused message is freed, which also lands
}

void Owner::probe(Peer& peer) {
  FrameHeader header = header_to(peer, FrameKind::Probe);
  header.sequence = peer.out.next();
  header.tag.step = peer.question;
  zmq::message_t head(encode(header).data(), kHeaderBytes);
  if (peer.data.send(head, zmq::send_flags::sndmore | zmq::send_flags::dontwait))
    peer.data.send(zmq::message_t(), zmq::send_flags::dontwait);
  peer.next_probe = Clock::now() + peer.probe_interval;
  peer.probe_interval = std::min<Clock::duration>(2 * peer.probe_interval, std::chrono::seconds(1));
}

void Owner::acknowledge(Peer& peer, FrameKind kind) {
  peer.ack_due = false;
  peer.unacknowledged = 0;
  peer.unacknowledged_bytes = 0;
  const TakenCounts taken = desk_.taken(peer.rank);
  FrameHeader header = header_to(peer, kind);
  header.sequence = peer.in.expected();
  header.tag.step = peer.peers_question;
  header.dims = Dims{static_cast<std::int64_t>(taken[0]),
                     static_cast<std::int64_t>(taken[1]),
                     static_cast<std::int64_t>(taken[2])};
  say(peer, header);
}

void Owner::say(Peer& peer, FrameHeader header, std::string_view payload) {
  const std::size_t size = std::min(payload.size(), kLongestText);
  header.payload_bytes = size;
  zmq::message_t head(encode(header).data(), kHeaderBytes);
  if (!peer.control.send(head, zmq::send_flags::sndmore | zmq::send_flags::dontwait)) return;
  zmq::message_t body(payload.data(), size);
  peer.control.send(body, zmq::send_flags::dontwait);
}

FrameHeader Owner::header_to(const Peer& peer, FrameKind kind) const {
  FrameHeader header;
  header.kind = kind;
  header.job = options_.job;
  header.epoch = options_.epoch;
  header.source = options_.rank;
  header.destination = peer.rank;
  return header;
}

}  // namespace millrace::zeromq
