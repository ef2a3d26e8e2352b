// Time: heartbeats, probes, lost and hanging peers, and the goodbye. Liveness is judged on the
// control connection by what the peer says, never by the library's own heartbeats, which tear down
// healthy links and are answered by a process whose rank hangs.
#include <algorithm>
#include <cstring>

#include "transport/zeromq/owner.hpp"

namespace millrace::zeromq {

using namespace std::chrono_literals;

namespace {

constexpr auto kLookInterval = 25ms;

}  // namespace

void Owner::read_monitor(Peer& peer) {
  zmq::message_t event;
  zmq::message_t address;
  while (receive_part(peer.monitor, event)) {
    if (event.more()) receive_part(peer.monitor, address);
    std::uint16_t number = 0;
    if (event.size() < sizeof number) continue;
    std::memcpy(&number, event.data(), sizeof number);
    if (number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) peer.lost_since.reset();
    if ((number == ZMQ_EVENT_DISCONNECTED || number == ZMQ_EVENT_CONNECT_RETRIED) &&
        !peer.lost_since)
      peer.lost_since = Clock::now();
    if (number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
      fail(FailureCause::Protocol,
           "rank " + std::to_string(peer.rank.value) + " does not accept our key");
  }
}

void Owner::tick(Clock::time_point now) {
  // A process that was stopped itself finds everybody silent: that proves nothing.
  if (now - last_tick_ > options_.heartbeat + 1s) board_.forgive(now - last_tick_, now);
  last_tick_ = now;
  if (leaving_ && now >= next_bye_) leave_when_settled(now);
  if (now >= next_beat_) beat(now);
  if (stopped_) return;
  for (const auto& peer : peers_) {
    if (!peer || peer->left) continue;
    const bool waiting = !peer->out.settled() || peer->question != peer->answered;
    if (waiting && now >= peer->next_probe) probe(*peer);
  }
  if (now < next_look_) return;
  next_look_ = now + std::min<Clock::duration>(options_.heartbeat / 4, kLookInterval);
  for (const auto& peer : peers_)
    if (peer) read_monitor(*peer);
  watch(now);
}

void Owner::beat(Clock::time_point now) {
  next_beat_ = now + options_.heartbeat;
  if (stopped_ && !stopped_->text.empty()) return shout(*stopped_);
  const Activity activity = slot_.now();
  board_.note(options_.rank, activity);
  const ActivityWords words = encode(activity);
  const std::string_view payload(reinterpret_cast<const char*>(words.data()), sizeof words);
  for (const auto& peer : peers_) {
    if (!peer || peer->left) continue;
    FrameHeader header = header_to(*peer, FrameKind::Progress);
    header.sequence = activity.count;
    // An age: clocks of two machines have nothing to do with each other.
    header.tag.step = static_cast<std::uint64_t>(
        std::max<std::int64_t>(0, std::chrono::nanoseconds(now - activity.since).count()));
    say(*peer, header, payload);
  }
}

/// Newer than heartbeats: what this rank does, and what ranks on this machine did at the very last.
void Owner::look_around() {
  board_.note(options_.rank, slot_.now());
  for (const auto& peer : peers_) {
    if (!peer || peer->left) continue;
    const std::string path = slot_path(options_, peer->rank);
    if (path.empty()) return;
    if (const auto activity = ProgressSlot::of(path)) board_.note(peer->rank, *activity);
  }
}

std::string Owner::report(Rank culprit, Clock::time_point now) {
  look_around();
  return board_.report(culprit, now);
}

void Owner::watch(Clock::time_point now) {
  for (const auto& peer : peers_) {
    // Who has acknowledged our goodbye may go: it owes us nothing more.
    if (!peer || peer->left || peer->bye_acknowledged || !peer->lost_since) continue;
    if (now - *peer->lost_since <= options_.reconnect_grace) continue;
    return fail(FailureCause::PeerLost,
                "lost rank " + std::to_string(peer->rank.value) + ": its connection ended; " +
                    report(peer->rank, now));
  }
  if (board_.silent(now, options_.silence)) {
    look_around();  // of several silent ranks, news may tell who waits for whom
    const Rank silent = *board_.silent(now, options_.silence);
    return fail(FailureCause::Hang,
                "rank " + std::to_string(silent.value) + " is silent; " + report(silent, now));
  }
  if (const auto hanging = board_.hanging(now, options_.hang))
    fail(FailureCause::Hang,
         "rank " + std::to_string(hanging->value) + " does not get on; " + report(*hanging, now));
}

void Owner::leave_when_settled(Clock::time_point now) {
  next_bye_ = now + options_.probe_after / 2;
  bool done = true;
  for (const auto& peer : peers_) {
    if (!peer || peer->left || peer->bye_acknowledged) continue;
    done = false;
    if (!peer->out.settled()) continue;
    say(*peer, header_to(*peer, FrameKind::Bye));
  }
  if (done) desk_.settle();
}

void Owner::fail(FailureCause cause, const std::string& text) {
  if (!desk_.fail(cause, text)) return;
  stopped_ = Stop{cause, text};
  shout(*stopped_);
}

void Owner::shout(const Stop& stop) {
  for (const auto& peer : peers_) {
    if (!peer || peer->left) continue;
    FrameHeader header = header_to(*peer, FrameKind::Abort);
    header.tag.slice = Slice{static_cast<std::int32_t>(stop.cause)};
    say(*peer, header, stop.text);
  }
}

}  // namespace millrace::zeromq
