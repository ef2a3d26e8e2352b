// What comes in. A frame with a large tensor announces it, and the tensor is received where it will
// stay; frames are checked in the order in which they were sent, each when all of it is there.
#include <cstring>
#include <fmt/format.h>
#include <utility>
#include <variant>

#include "transport/link/endpoint.hpp"
#include "transport/mpi/message_loop.hpp"

namespace millrace::mpi {

namespace {

constexpr int kFramesPerTurn = 256;

std::span<const std::byte> header_of(std::span<const std::byte> bytes) {
  return bytes.first(std::min(bytes.size(), kHeaderBytes));
}

std::span<const std::byte> behind_header(std::span<const std::byte> bytes) {
  return bytes.subspan(std::min(bytes.size(), kHeaderBytes));
}

std::span<const std::byte> contents(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data()), tensor.bytes()};
}

bool has_tensor(std::span<const std::byte> bytes) {
  const auto kind = claimed_kind(bytes);
  return kind && carries_tensor(*kind);
}

}  // namespace

bool MessageLoop::read() {
  bool any = false;
  for (int place = 0; place < options_.places; ++place) any = read_from(place) || any;
  return any;
}

/// From the ranks that have this place in their processes.
bool MessageLoop::read_from(int place) {
  const int tag = world_.tag_of(options_.epoch, Purpose::Frame, place, position_.place);
  int frames = 0;
  for (Waiting found; frames < kFramesPerTurn && world_.waits(tag, found); ++frames) {
    const Rank from{found.from * options_.places + place};
    if (from.index() >= peers_.size() || found.bytes > static_cast<int>(kLargestFrame))
      throw TransportError(
          fmt::format("rank {} sent a frame of {} bytes", from.value, found.bytes));
    std::vector<std::byte> bytes(static_cast<std::size_t>(found.bytes));
    MPI_Request request = world_.receive(found, bytes.data());
    check(MPI_Wait(&request, MPI_STATUS_IGNORE), "receive");
    monitor_.heard(from, Clock::now());
    take_word(peers_[from.index()], std::move(bytes));
  }
  return frames > 0;
}

/// A frame after a tensor that is still on its way waits for it.
void MessageLoop::take_word(Peer& peer, std::vector<std::byte> bytes) {
  peer.watched = true;
  const bool tensor = has_tensor(bytes);
  if (!tensor && (peer.arrivals.empty() || claimed_kind(bytes) != FrameKind::Bye))
    return take_control(peer, bytes);
  Arrival& arrival = peer.arrivals.emplace_back(Arrival{std::move(bytes), {}});
  if (tensor) begin_payload(peer, arrival);
}

void MessageLoop::begin_payload(Peer& peer, Arrival& arrival) {
  const auto head = header_of(arrival.bytes);
  if (check_envelope(head) != Refusal::None || !travels_apart(payload_of(head).bytes)) return;
  DataHeader header;
  const FrameExpectation expected{
      options_.job, options_.epoch, peer.rank, self_, options_.largest_payload};
  // Refused again, and named, when its turn has come.
  if (decode(head, payload_of(head).bytes, expected, header) != Refusal::None) return;
  arrival.tensor = pool_.make(header.dtype, header.dims);
  arrival.request = world_.receive_payload(
      peer.position.process,
      world_.tag_of(options_.epoch, Purpose::Payload, peer.position.place, position_.place),
      static_cast<std::byte*>(arrival.tensor.data()),
      arrival.tensor.bytes());
}

bool MessageLoop::land(Peer& peer) {
  bool any = false;
  while (!peer.arrivals.empty() &&
         World::arrived(peer.arrivals.front().request, peer.arrivals.front().tensor.bytes())) {
    any = true;
    Arrival arrival = std::move(peer.arrivals.front());
    peer.arrivals.pop_front();
    has_tensor(arrival.bytes) ? take_data(peer, std::move(arrival))
                              : take_control(peer, arrival.bytes);
  }
  return any;
}

void MessageLoop::take_data(Peer& peer, Arrival arrival) {
  if (stopped_) return;
  const auto payload = arrival.tensor ? contents(arrival.tensor) : behind_header(arrival.bytes);
  DataHeader header;
  const Refusal wrong = peer.in.take(header_of(arrival.bytes), payload, header);
  if (answer_to(wrong) == Answer::Drop) return;
  if (wrong != Refusal::None)
    return fail(FailureCause::Protocol, refused_frame(self_, peer.rank, wrong));
  mailbox_.credit(peer.rank, header.taken);
  if (header.tensor_count > 0 && !arrival.tensor && !header.absent) {
    arrival.tensor = pool_.make(header.dtype, header.dims);
    if (!payload.empty()) std::memcpy(arrival.tensor.data(), payload.data(), payload.size());
  }
  if (header.tensor_count > 0) peer.assembling.push_back(std::move(arrival.tensor));
  if (peer.in.inside_message()) return;
  if (!mailbox_.deliver(peer.rank, header.tag, std::exchange(peer.assembling, {})))
    fail(FailureCause::Protocol, surplus_message(self_, peer.rank, header.tag));
}

void MessageLoop::take_control(Peer& peer, std::span<const std::byte> bytes) {
  const FrameExpectation expected{options_.job, options_.epoch, peer.rank, self_, kLongestText};
  Envelope envelope;
  Control control;
  const Refusal wrong = decode(header_of(bytes), behind_header(bytes), expected, envelope, control);
  if (answer_to(wrong) == Answer::Drop) return;
  if (wrong != Refusal::None)
    return fail(FailureCause::Protocol,
                fmt::format("rank {} does not understand rank {}: {}",
                            self_.value,
                            peer.rank.value,
                            name_of(wrong)));
  mailbox_.credit(peer.rank, envelope.taken);
  std::visit(
      [&](const auto& kind) {
        if constexpr (requires { obey(peer, kind); }) obey(peer, kind);
      },
      control);
}

void MessageLoop::obey(Peer& peer, const Probe& probe) {
  peer.question = std::max(peer.question, probe.question);
  say(peer, Ack{peer.question});
}

void MessageLoop::obey(Peer& peer, const Ack& ack) {
  mailbox_.answer(peer.rank, ack.question);
}

void MessageLoop::obey(Peer& peer, const Progress& progress) {
  const auto now = Clock::now();
  Activity activity = progress.activity;
  activity.since = now - progress.age;
  monitor_.note(peer.rank, activity, now);
}

void MessageLoop::obey(Peer& /*peer*/, const Abort& abort) {
  if (mailbox_.fail(abort.cause, abort.text)) stopped_ = true;
}

void MessageLoop::obey(Peer& peer, const Bye& /*bye*/) {
  peer.left = true;
  monitor_.left(peer.rank);
  mailbox_.leave(peer.rank);
  say(peer, ByeAck{});
}

void MessageLoop::obey(Peer& peer, const ByeAck& /*ack*/) {
  peer.bye_acknowledged = true;
  monitor_.left(peer.rank);
}

}  // namespace millrace::mpi
