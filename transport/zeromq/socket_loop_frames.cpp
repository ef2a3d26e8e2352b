// Frames in and out. Frames of unknown peers are dropped before a byte is looked at; what
// a known rank sends is checked by its link and answered by the table.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <variant>

#include "transport/link/endpoint.hpp"
#include "transport/zeromq/socket_loop.hpp"

namespace millrace::zeromq {

namespace {

/// Below this, copying into the network layer is cheaper than lending it our memory.
constexpr std::size_t kCopyBytes = 2048;
constexpr int kFramesPerTurn = 256;

std::span<const std::byte> bytes_of(const zmq::message_t& message) {
  return {message.data<std::byte>(), message.size()};
}

/// What is sent after the header.
std::span<const std::byte> part_of(const RetainedFrame& frame) {
  if (!frame.tensor) return {};
  if (frame.lead == 0)
    return {static_cast<const std::byte*>(frame.tensor.data()), frame.tensor.bytes()};
  return frame.tensor.bytes_and_margins().subspan(kAlignment - static_cast<std::size_t>(frame.lead),
                                                  padded_bytes(frame.lead, frame.tensor.bytes()));
}

void landed(void*, void* hint) {
  // Runs on a thread of the network layer: nothing but the release that sweep() acquires.
  static_cast<std::atomic<int>*>(hint)->fetch_sub(1, std::memory_order_release);
}

}  // namespace

bool SocketLoop::read(zmq::socket_t& socket, Arrival& arrival) {
  arrival.parts = 0;
  if (!receive_part(socket, arrival.identity)) return false;
  zmq::message_t rest;
  arrival.parts = 1;
  for (bool more = arrival.identity.more(); more; ++arrival.parts) {
    zmq::message_t& slot = arrival.parts == 1   ? arrival.header
                           : arrival.parts == 2 ? arrival.payload
                                                : rest;
    if (!receive_part(socket, slot)) break;
    more = slot.more();
  }
  return true;
}

SocketLoop::Peer* SocketLoop::sender_of(Arrival& arrival) {
  const int rank = rank_of(arrival.identity.to_string_view(), options_.world);
  Peer* peer = rank < 0 ? nullptr : peers_[static_cast<std::size_t>(rank)].get();
  if (peer != nullptr && options_.link == ZeroMqLink::Tcp && !options_.insecure) {
    // The name must be that of the key: a known rank may not send as another.
    try {
      const char* user = arrival.header.gets("User-Id");
      if (user == nullptr || arrival.identity.to_string_view() != user) peer = nullptr;
    } catch (const zmq::error_t&) {
      peer = nullptr;
    }
  }
  if (peer == nullptr) ++unknown_peers_;
  return peer;
}

bool SocketLoop::read_data() {
  Arrival arrival;
  int frames = 0;
  for (; frames < kFramesPerTurn && read(listeners_.data, arrival); ++frames)
    if (Peer* peer = sender_of(arrival)) take_data(*peer, arrival);
  return frames == kFramesPerTurn;
}

void SocketLoop::take_data(Peer& peer, Arrival& arrival) {
  if (stopped_) return;
  const auto verdict = arrival.parts == 3
                           ? peer.in.take(bytes_of(arrival.header), bytes_of(arrival.payload))
                           : peer.in.refuse(Refusal::PartCount);
  switch (verdict.answer) {
    case Answer::Drop:
      return;
    case Answer::DropAcknowledge:
      if (verdict.probe) {
        peer.peers_question = verdict.probe->question;
        learn(peer, verdict.header);
      }
      peer.tell_at = Clock::now();
      return;
    case Answer::AskAgain:
      ask_again(peer);
      return;
    case Answer::Abort:
      fail(FailureCause::Protocol, refused_frame(options_.rank, peer.rank, verdict.refusal));
      return;
    case Answer::Accept:
      break;
  }
  const auto now = Clock::now();
  monitor_.heard(peer.rank, now);
  learn(peer, verdict.header);
  ++peer.unacknowledged;
  peer.tell_at = std::min(peer.tell_at, now + kAckDelay);
  peer.unacknowledged_bytes += verdict.header.payload_bytes;
  if (verdict.header.tensor_count > 0)
    peer.assembling.push_back(tensor_of(peer, verdict.header, arrival.payload));
  if (peer.in.inside_message()) return;
  if (!mailbox_.deliver(peer.rank, verdict.header.tag, std::exchange(peer.assembling, {})))
    return fail(FailureCause::Protocol,
                surplus_message(options_.rank, peer.rank, verdict.header.tag));
}

/// In place when the memory lies right, else copied: bits of results depend on alignment. At once
/// and into recycled memory: blocks of the network layer that wait to be taken make it ask the
/// system for more, and fresh pages cost more than the copy.
Tensor SocketLoop::tensor_of(Peer& peer, const DataHeader& header, zmq::message_t& part) {
  if (header.absent) return {};
  const auto lead = static_cast<std::size_t>(header.lead);
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  const bool large = header.payload_bytes >= kInPlaceBytes;
  if (large) peer.wished_lead = static_cast<int>((kAlignment - begin % kAlignment) % kAlignment);
  if (large && (begin + lead) % kAlignment == 0) {
    auto kept = std::make_unique<zmq::message_t>(std::move(part));
    Tensor tensor(
        header.dtype,
        header.dims,
        kept->data<std::byte>() + lead,
        [](void*, std::size_t, void* owner) noexcept {
          delete static_cast<zmq::message_t*>(owner);
        },
        kept.get());
    static_cast<void>(kept.release());  // the tensor's, from now on
    return tensor;
  }
  Tensor tensor = pool_.make(header.dtype, header.dims);
  const auto bytes = tensor_bytes(header, bytes_of(part));
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

/// What every frame of a peer says.
void SocketLoop::learn(Peer& peer, const Envelope& envelope) {
  if (envelope.acknowledged > peer.out.oldest()) peer.probe_interval = options_.probe_after;
  peer.out.acknowledge(envelope.acknowledged);
  peer.lead = envelope.wished_lead;
  mailbox_.credit(peer.rank, envelope.taken);
}

bool SocketLoop::read_control() {
  Arrival arrival;
  int frames = 0;
  for (; frames < kFramesPerTurn && read(listeners_.control, arrival); ++frames) {
    Peer* peer = sender_of(arrival);
    if (peer == nullptr || arrival.parts != 3) continue;
    const FrameExpectation expected{
        options_.job, options_.epoch, peer->rank, options_.rank, kLongestText};
    Envelope envelope;
    Control control;
    // Everything said here is said again if it is lost, so damage is simply dropped.
    if (decode(bytes_of(arrival.header), bytes_of(arrival.payload), expected, envelope, control) !=
        Refusal::None)
      continue;
    monitor_.heard(peer->rank, Clock::now());
    learn(*peer, envelope);
    heed(*peer, control);
  }
  return frames == kFramesPerTurn;
}

void SocketLoop::heed(Peer& peer, const Control& control) {
  std::visit(
      [&](const auto& kind) {
        // A probe travels with the data, and no hello comes after the rendezvous.
        if constexpr (requires { obey(peer, kind); }) obey(peer, kind);
      },
      control);
}

void SocketLoop::obey(Peer& peer, const Ack& ack) {
  peer.answered = std::max(peer.answered, std::min(ack.question, peer.question));
  mailbox_.answer(peer.rank, ack.question);
}

void SocketLoop::obey(Peer& peer, const Nack& nack) {
  if (stopped_ || nack.number <= peer.obeyed) return;
  peer.obeyed = nack.number;
  peer.out.each_from(nack.from, [&](RetainedFrame& frame) { transmit(peer, frame); });
}

void SocketLoop::obey(Peer& peer, const Progress& progress) {
  const auto now = Clock::now();
  Activity activity = progress.activity;
  activity.since = now - progress.age;
  monitor_.note(peer.rank, activity, now);
}

/// Passed on: not every rank is connected with the one that failed first.
void SocketLoop::obey(Peer& /*peer*/, const Abort& abort) {
  fail(abort.cause, abort.text);
}

void SocketLoop::obey(Peer& peer, const Bye& /*bye*/) {
  peer.left = true;
  monitor_.left(peer.rank);
  mailbox_.leave(peer.rank);
  say(peer, ByeAck{});
}

void SocketLoop::obey(Peer& peer, const ByeAck& /*ack*/) {
  peer.bye_acknowledged = true;
  monitor_.left(peer.rank);
}

void SocketLoop::transmit(Peer& peer, RetainedFrame& frame) {
  zmq::message_t head(frame.header.data(), frame.header.size());
  zmq::socket_t& data = data_to(peer);
  if (!send_part(data, head, true)) return;
  const std::span<const std::byte> part = part_of(frame);
  if (part.size() <= kCopyBytes) {
    zmq::message_t body(part.data(), part.size());
    send_part(data, body, false);
    return;
  }
  frame.flights.fetch_add(1, std::memory_order_relaxed);  // only this thread raises it
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the network layer only reads
  auto* lent = const_cast<std::byte*>(part.data());
  zmq::message_t body(lent, part.size(), landed, &frame.flights);
  send_part(data, body, false);  // a refused message is freed, which also lands
}

void SocketLoop::probe(Peer& peer) {
  const Probe question{peer.out.next(), peer.question, peer.obeyed};
  zmq::message_t head(encode(envelope_to(peer), question).header.data(), kHeaderBytes);
  zmq::message_t nothing;
  zmq::socket_t& data = data_to(peer);
  if (send_part(data, head, true)) send_part(data, nothing, false);
  peer.next_probe = Clock::now() + peer.probe_interval;
  peer.probe_interval = std::min<Clock::duration>(2 * peer.probe_interval, std::chrono::seconds(1));
}

void SocketLoop::ask_again(Peer& peer) {
  say(peer, Nack{peer.in.expected(), peer.in.asks()});
}

void SocketLoop::acknowledge(Peer& peer) {
  say(peer, Ack{peer.peers_question});
}

void SocketLoop::say(Peer& peer, const Control& control) {
  const ControlBytes bytes = encode(envelope_to(peer), control);
  zmq::message_t head(bytes.header.data(), bytes.header.size());
  zmq::socket_t& socket = control_to(peer);
  if (!send_part(socket, head, true)) return;
  zmq::message_t body(bytes.text);
  send_part(socket, body, false);
}

/// What every frame says; acknowledgements that waited travel with it.
Envelope SocketLoop::envelope_to(Peer& peer) {
  peer.tell_at = Clock::time_point::max();
  peer.unacknowledged = 0;
  peer.unacknowledged_bytes = 0;
  Envelope envelope;
  envelope.job = options_.job;
  envelope.epoch = options_.epoch;
  envelope.source = options_.rank;
  envelope.destination = peer.rank;
  envelope.acknowledged = peer.in.expected();
  envelope.taken = mailbox_.taken(peer.rank);
  envelope.wished_lead = peer.wished_lead;
  return envelope;
}

}  // namespace millrace::zeromq
