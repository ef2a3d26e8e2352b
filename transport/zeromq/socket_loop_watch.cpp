// Time: heartbeats, probes, lost and hanging peers, and the goodbye. Liveness is judged on the
// control connection by what the peer says, never by the library's own heartbeats, which tear down
// healthy links and are answered by a process whose rank hangs.
#include <algorithm>
#include <poll.h>

#include "transport/zeromq/socket_loop.hpp"

namespace millrace::zeromq {

using namespace std::chrono_literals;

namespace {

constexpr auto kLookInterval = 25ms;
constexpr auto kLongestByeInterval = 500ms;
constexpr int kStretch = 4;  // times the slowest first hand-shake

}  // namespace

void SocketLoop::look_at_lines(Clock::time_point now) {
  if (::poll(polled_.data() + kLines, lines_.size(), 0) <= 0) return;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (polled_[kLines + i].revents == 0) continue;
    const bool fresh = lines_[i]->watch.took() == Clock::duration::zero();
    if (!lines_[i]->look(now))
      fail(FailureCause::Protocol,
           "rank " + std::to_string(lines_[i]->to.value) + " does not accept our key");
    slowest_ = std::max(slowest_, lines_[i]->watch.took());
    if (!fresh || !lines_[i]->watch.up()) continue;
    --dialling_;
    monitor_.progressed(now);
  }
  dial_next();
}

void SocketLoop::tick(Clock::time_point now) {
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
  look_at_lines(now);
  // What has come and was not read may be news.
  if (polled_[0].revents == 0 && polled_[1].revents == 0) watch(now);
}

void SocketLoop::beat(Clock::time_point now) {
  next_beat_ = now + options_.heartbeat;
  if (stopped_ && !stopped_->text.empty()) return shout(*stopped_);
  const Activity activity = slot_.now();
  next_beat_ = now + heartbeat_interval_.interval(now - activity.since);
  const Progress progress{activity, now - activity.since};
  const std::size_t together =
      std::min<std::size_t>(peers_.size(), HeartbeatInterval::kTogether + 1);
  for (std::size_t i = 0; i < together; ++i) {
    const auto& peer = peers_[next_told_++ % peers_.size()];
    // A connection that is not there yet would hand all of it over at once.
    if (!peer || peer->left || !peer->control || !peer->control->watch.up()) continue;
    say(*peer, progress);
  }
}

/// Newer than heartbeats: what a rank on this machine did at the very last.
void SocketLoop::confirm(Rank rank, Clock::time_point now) {
  if (rank == options_.rank) return monitor_.note(rank, slot_.now(), now);
  const std::string path = slot_path(options_, rank);
  if (path.empty()) return;
  if (const auto activity = ProgressSlot::of(path)) monitor_.note(rank, *activity, now);
}

void SocketLoop::look_around(Clock::time_point now) {
  for (int i = 0; i < options_.world; ++i)
    if (Rank{i} == options_.rank || !peers_[static_cast<std::size_t>(i)]->left)
      confirm(Rank{i}, now);
}

std::string SocketLoop::report(Rank culprit, Clock::time_point now) {
  look_around(now);
  return monitor_.report(culprit, now);
}

/// A rank whose connection ended and did not come back. Who has acknowledged our goodbye may go: it
/// owes us nothing more.
std::optional<Rank> SocketLoop::cut_off(Clock::time_point now) const {
  // Where hand-shakes took long, those of connections that come back will.
  const auto patience = std::max<Clock::duration>(options_.reconnect_grace, kStretch * slowest_);
  for (const auto& peer : peers_) {
    if (!peer || peer->left || peer->bye_acknowledged) continue;
    for (const Line* line : {peer->control.get(), peer->data.get()})
      if (line != nullptr && line->watch.lost(now, options_.reconnect_grace, patience))
        return peer->rank;
  }
  return std::nullopt;
}

void SocketLoop::watch(Clock::time_point now) {
  confirm(options_.rank, now);
  if (const auto lost = cut_off(now))
    return fail(FailureCause::PeerLost,
                "lost rank " + std::to_string(lost->value) + ": its connection ended; " +
                    report(*lost, now));
  if (monitor_.silent(now, heartbeat_interval_.timeout())) {
    look_around(now);  // of several silent ranks, news may tell who waits for whom
    const Rank silent = *monitor_.silent(now, heartbeat_interval_.timeout());
    return fail(FailureCause::Hang,
                "rank " + std::to_string(silent.value) + " is silent; " + report(silent, now));
  }
  for (const Rank rank : monitor_.overdue(now, options_.action_timeout)) confirm(rank, now);
  if (const auto hanging = monitor_.hanging(now, options_.action_timeout))
    fail(FailureCause::Hang,
         "rank " + std::to_string(hanging->value) + " is alive but makes no progress; " +
             report(*hanging, now));
}

void SocketLoop::leave_when_settled(Clock::time_point now) {
  next_bye_ = now + bye_interval_;
  bye_interval_ = std::min<Clock::duration>(2 * bye_interval_, kLongestByeInterval);
  bool done = true;
  for (const auto& peer : peers_) {
    if (!peer || peer->left || peer->bye_acknowledged || !knows(*peer)) continue;
    done = false;
    if (!peer->out.settled()) continue;
    say(*peer, Bye{});
  }
  if (done) mailbox_.settle();
}

void SocketLoop::fail(FailureCause cause, const std::string& text) {
  if (!mailbox_.fail(cause, text)) return;
  stopped_ = Stop{cause, text};
  shout(*stopped_);
}

void SocketLoop::shout(const Stop& stop) {
  for (const auto& peer : peers_) {
    if (!peer || peer->left || !knows(*peer)) continue;
    say(*peer, Abort{stop.cause, stop.text.substr(0, kLongestText)});
  }
}

}  // namespace millrace::zeromq
