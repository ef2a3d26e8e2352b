// Time: heartbeats, probes, lost and hanging peers, and the shutdown message. Liveness is checked
// on the control connection by what the peer says, never by the library's own heartbeats, which
// tear down healthy links and are answered by a process whose rank hangs.
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
  if (polled_[0].revents != 0 || polled_[1].revents != 0) return;
  if (const auto failure = judge(now)) fail(*failure);
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
    const auto& peer = peers_[next_heartbeat_++ % peers_.size()];
    // A connection that is not there yet would hand all of it over at once.
    if (!peer || peer->left || !peer->control || !peer->control->watch.up()) continue;
    say(*peer, progress);
  }
}

/// Newer than heartbeats: the last action of a rank on this host.
std::optional<Watch::News> SocketLoop::news_of(Rank rank, Clock::time_point now) const {
  const std::string path = slot_path(options_, rank);
  const auto activity = path.empty() ? std::nullopt : ProgressSlot::of(path);
  if (!activity) return std::nullopt;
  return Watch::News{*activity, now};
}

/// A rank whose connection ended and did not come back. A rank that has acknowledged our shutdown
/// message may go: it owes us nothing more.
std::optional<Rank> SocketLoop::cut_off(Clock::time_point now) const {
  // Where hand-shakes took long, those of connections that come back will.
  const auto timeout = std::max<Clock::duration>(options_.reconnect_grace, kStretch * slowest_);
  for (const auto& peer : peers_) {
    if (!peer || peer->left || peer->bye_acknowledged) continue;
    for (const Line* line : {peer->control.get(), peer->data.get()})
      if (line != nullptr && line->watch.lost(now, options_.reconnect_grace, timeout))
        return peer->rank;
  }
  return std::nullopt;
}

std::optional<Failure> SocketLoop::judge(Clock::time_point now) {
  if (const auto rank = cut_off(now)) return watch_.lost(*rank, "its connection ended", now);
  return watch_.judge(now);
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
  stopped_ = Failure{cause, text};
  shout(*stopped_);
}

void SocketLoop::shout(const Failure& failure) {
  for (const auto& peer : peers_) {
    if (!peer || peer->left || !knows(*peer)) continue;
    say(*peer, Abort{failure.cause, failure.text.substr(0, kLongestText)});
  }
}

}  // namespace millrace::zeromq
