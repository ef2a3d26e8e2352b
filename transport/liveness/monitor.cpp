#include "transport/liveness/monitor.hpp"

#include <algorithm>
#include <utility>

namespace millrace {

namespace {

using namespace std::chrono_literals;

constexpr int kUsualTimes = 8;   // times what 99 of 100 took
constexpr auto kLeast = 1s;      // however short that is
constexpr auto kMargin = 200ms;  // on top
constexpr LivenessMonitor::Clock::duration kFloor = 10s;
constexpr int kStretch = 16;     // times the longest of its kind
constexpr int kFirstTimes = 12;  // times the floor, where nothing is known yet
constexpr auto kAgain = 100ms;

}  // namespace

LivenessMonitor::LivenessMonitor(Rank self, int world, Clock::time_point now)
    : self_(self), lines_(static_cast<std::size_t>(world)), progressed_(now) {
  for (Line& line : lines_) line.activity.since = line.heard = line.news = now;
}

void LivenessMonitor::note(Rank rank, const Activity& activity, Clock::time_point now) {
  Line& line = lines_[rank.index()];
  if (activity.count < line.activity.count) return;
  if (activity.count > line.activity.count) line.suspended = {};
  line.activity = activity;
  line.news = now;
}

void LivenessMonitor::heard(Rank rank, Clock::time_point now) {
  Line& line = lines_[rank.index()];
  line.heard = now;
  if (!std::exchange(line.met, true)) progressed_ = now;
  line.expected = true;
}

void LivenessMonitor::left(Rank rank) {
  lines_[rank.index()].left = true;
  lines_[rank.index()].activity.doing = Doing::Left;
}

void LivenessMonitor::suspended(Clock::duration pause) {
  progressed_ += pause;
  for (Line& line : lines_) {
    line.heard += pause;
    line.suspended += pause;
  }
}

LivenessMonitor::Clock::duration LivenessMonitor::limit_of(const Activity& activity,
                                                           const Floor& floor) {
  if (activity.doing != Doing::Works) return Clock::duration::max();
  if (activity.usual != std::chrono::nanoseconds::zero())
    return std::max<Clock::duration>(
        floor.value_or(Clock::duration::zero()),
        std::max<Clock::duration>(kUsualTimes * activity.usual, kLeast) + kMargin);
  const bool known = activity.longest != std::chrono::nanoseconds::zero();
  const auto least = floor.value_or(kFloor);
  return std::max<Clock::duration>(known ? least : kFirstTimes * least,
                                   kStretch * activity.longest);
}

bool LivenessMonitor::is_isolated(Clock::time_point now, Clock::duration limit) const {
  int others = 0;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const Line& at = lines_[i];
    if (i == self_.index() || at.left || !at.expected || !at.met) continue;
    if (now - at.heard <= limit) return false;
    ++others;
  }
  return others > 1;
}

std::optional<Rank> LivenessMonitor::silent(Clock::time_point now, Clock::duration limit) const {
  if (is_isolated(now, limit)) limit *= 2;
  const auto is_silent = [&](Rank rank) {
    const Line& at = line(rank);
    return rank != self_ && !at.left && at.expected &&
           now - (at.met ? at.heard : progressed_) > limit;
  };
  std::optional<Rank> found;
  for (int i = 0; i < static_cast<int>(lines_.size()) && !found; ++i)
    if (is_silent(Rank{i})) found = Rank{i};
  if (!found) return found;
  const Rank end = end_of_chain(*found);
  return is_silent(end) ? end : found;
}

/// The last moment at which the rank's action does not hang.
LivenessMonitor::Clock::time_point LivenessMonitor::limit(Rank rank, const Floor& floor) const {
  const Line& at = line(rank);
  const auto allowed = limit_of(at.activity, floor);
  if (at.left || allowed == Clock::duration::max()) return Clock::time_point::max();
  return at.activity.since + at.suspended + allowed;
}

std::vector<Rank> LivenessMonitor::overdue(Clock::time_point now, const Floor& floor) const {
  std::vector<Rank> ranks;
  for (int i = 0; i < static_cast<int>(lines_.size()); ++i)
    if (now > limit(Rank{i}, floor)) ranks.emplace_back(i);
  return ranks;
}

std::optional<Rank> LivenessMonitor::hanging(Clock::time_point now, const Floor& floor) const {
  for (const Rank rank : overdue(now, floor))
    if (line(rank).news > limit(rank, floor)) return rank;
  return std::nullopt;
}

LivenessMonitor::Clock::duration LivenessMonitor::until_next_limit(Clock::time_point now,
                                                                   const Floor& floor) const {
  auto least = Clock::time_point::max();
  for (int i = 0; i < static_cast<int>(lines_.size()); ++i)
    least = std::min(least, limit(Rank{i}, floor));
  return least > now ? least - now : Clock::duration(kAgain);
}

}  // namespace millrace
