// Time: heartbeats, silent and hanging ranks, and the goodbye. MPI tells nobody that a rank is gone
// or stopped; its mpirun ends the job for the first, and we find the second by its silence.
#include <utility>

#include "transport/mpi/message_loop.hpp"

namespace millrace::mpi {

using namespace std::chrono_literals;

namespace {

constexpr auto kLookInterval = 25ms;
/// Turns follow each other so soon at least, unless this process was not running.
constexpr auto kLate = 100ms;

}  // namespace

void MessageLoop::tick(Clock::time_point now) {
  if (const auto gap = now - std::exchange(last_turn_, now); gap > kLate) monitor_.suspended(gap);
  if (leaving_) leave_when_settled();
  if (stopped_) return;
  if (now >= next_beat_) beat(now);
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  if (const auto failure = watch_.judge(now)) fail(*failure);
}

void MessageLoop::beat(Clock::time_point now) {
  const Activity activity = slot_.now();
  const auto age = now - activity.since;
  next_beat_ = now + heartbeat_interval_.interval(age);
  int told = 0;
  for (std::size_t i = 0; i < peers_.size() && told < HeartbeatInterval::kTogether; ++i) {
    Peer& peer = peers_[next_told_++ % peers_.size()];
    if (peer.rank == self_ || peer.left || !peer.watched) continue;
    say(peer, Progress{activity, age});
    ++told;
  }
}

/// A goodbye follows everything that was sent, so its answer says that all has come.
void MessageLoop::leave_when_settled() {
  bool done = true;
  for (Peer& peer : peers_) {
    if (peer.rank == self_ || peer.left || peer.bye_acknowledged) continue;
    done = false;
    if (!std::exchange(peer.said_goodbye, true)) say(peer, Bye{});
  }
  if (!done) return;
  settled_ = true;
  mailbox_.settle();
}

}  // namespace millrace::mpi
