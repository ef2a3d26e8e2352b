// Time: heartbeats, probes, lost and hanging peers, and the goodbye. Liveness is judged on the
// control connection by what the peer says, never by the library's own heartbeats, which tear down
// healthy links and are answered by a process whose rank hangs.
#include <algorithm>
#include <cstring>

#include "transport/zeromq/owner.hpp"

namespace millrace::zeromq {

using namespace std::chrono_literals;

void Owner::read_monitor(Peer& peer) {
  zmq::message_t event;
  zmq::message_t address;
  while (peer.monitor.recv(event, zmq::recv_flags::dontwait)) {
    if (event.more()) static_cast<void>(peer.monitor.recv(address, zmq::recv_flags::dontwait));
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
  if (now - last_tick_ > options_.heartbeat + 1s) board_.forgive(now - last_tick_);
  last_tick_ = now;
  if (leaving_ && now >= next_bye_) leave_when_settled(now);
  if (now >= next_beat_) beat(now);
  if (stopped_) return;
  for (const auto& peer : peers_) {
    if (!peer || peer->left) continue;
    const bool waiting = !peer->out.settled() || peer->question != peer->answered;
    if (waiting && now >= peer->next_probe) probe(*peer);
  }
  watch(now);
}

void Owner::beat(Clock::time_point now) {
  next_beat_ = now + options_.heartbeat;
  if (stopped_ && !stopped_->text.empty()) return shout(*stopped_);
  const Activity activity = desk_.activity();
  const std::string text = to_string(activity);
  board_.note(options_.rank, activity.count, activity.waiting, text, activity.since, now);
  for (const auto& peer : peers_) {
    if (!peer || peer->left) continue;
    FrameHeader header = header_to(*peer, FrameKind::Progress);
    header.sequence = activity.count;
    header.tag.slice = Slice{activity.waiting ? 1 : 0};
    header.tag.step = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(now - activity.since).count());
    say(*peer, header, text);
  }
}

void Owner::watch(Clock::time_point now) {
  for (const auto& peer : peers_) {
    if (!peer || peer->left || !peer->lost_since) continue;
    if (now - *peer->lost_since <= options_.reconnect_grace) continue;
    fail(FailureCause::PeerLost,
         "lost rank " + std::to_string(peer->rank.value) + ": its connection ended; then " +
             board_.describe(peer->rank, now) + board_.report(now));
    return;
  }
  if (const auto silent = board_.silent(now, options_.silence))
    return fail(FailureCause::Hang,
                "rank " + std::to_string(silent->value) +
                    " is silent: " + board_.describe(*silent, now) + board_.report(now));
  if (const auto hanging = board_.hanging(now, options_.hang))
    fail(FailureCause::Hang,
         "rank " + std::to_string(hanging->value) +
             " does not get on: " + board_.describe(*hanging, now) + board_.report(now));
}

void Owner::leave_when_settled(Clock::time_point now) {
  next_bye_ = now + options_.probe_after / 2;
  bool done = true;
  for (const auto& peer : peers_) {
    if (!peer || peer->left || peer->bye_acknowledged) continue;
    done = false;
    if (!peer->out.settled()) continue;
    FrameHeader header = header_to(*peer, FrameKind::Bye);
    header.sequence = peer->in.expected();
    say(*peer, header);
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
