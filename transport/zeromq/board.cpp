// See board.hpp.
#include "transport/zeromq/board.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace millrace::zeromq {

namespace {

using namespace std::chrono_literals;

constexpr int kUsualTimes = 8;   // times what 99 of 100 took
constexpr auto kLeast = 1s;      // however short that is
constexpr auto kMargin = 200ms;  // on top
constexpr Board::Clock::duration kFloor = 10s;
constexpr int kStretch = 16;     // times the longest of its kind
constexpr int kFirstTimes = 12;  // times the floor, where nothing is known yet
constexpr auto kAgain = 100ms;

std::string seconds(Board::Clock::duration time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(),
                text.size(),
                "%.1f s",
                std::max(0.0, std::chrono::duration<double>(time).count()));
  return text.data();
}

std::string number(Rank rank) {
  return "rank " + std::to_string(rank.value);
}

}  // namespace

Board::Board(Rank self, int world, Clock::time_point now)
    : self_(self), lines_(static_cast<std::size_t>(world)), got_on_(now) {
  for (Line& line : lines_) line.activity.since = line.heard = line.news = now;
}

void Board::note(Rank rank, const Activity& activity, Clock::time_point now) {
  Line& line = lines_[rank.index()];
  if (activity.count < line.activity.count) return;
  if (activity.count > line.activity.count) line.forgiven = {};
  line.activity = activity;
  line.news = now;
}

void Board::heard(Rank rank, Clock::time_point now) {
  Line& line = lines_[rank.index()];
  line.heard = now;
  if (!std::exchange(line.met, true)) got_on_ = now;
  line.expected = true;
}

void Board::left(Rank rank) {
  lines_[rank.index()].left = true;
  lines_[rank.index()].activity.doing = Doing::Left;
}

void Board::forgive(Clock::duration pause) {
  got_on_ += pause;
  for (Line& line : lines_) {
    line.heard += pause;
    line.forgiven += pause;
  }
}

Board::Clock::duration Board::limit_of(const Activity& activity, const Floor& floor) {
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

std::optional<Rank> Board::silent(Clock::time_point now, Clock::duration limit) const {
  const auto is_silent = [&](Rank rank) {
    const Line& at = line(rank);
    return rank != self_ && !at.left && at.expected && now - (at.met ? at.heard : got_on_) > limit;
  };
  std::optional<Rank> found;
  for (int i = 0; i < static_cast<int>(lines_.size()) && !found; ++i)
    if (is_silent(Rank{i})) found = Rank{i};
  if (!found) return found;
  const Rank end = end_of_chain(*found);
  return is_silent(end) ? end : found;
}

/// The last moment at which what the rank does is no hang.
Board::Clock::time_point Board::limit(Rank rank, const Floor& floor) const {
  const Line& at = line(rank);
  const auto allowed = limit_of(at.activity, floor);
  if (at.left || allowed == Clock::duration::max()) return Clock::time_point::max();
  return at.activity.since + at.forgiven + allowed;
}

std::vector<Rank> Board::overdue(Clock::time_point now, const Floor& floor) const {
  std::vector<Rank> ranks;
  for (int i = 0; i < static_cast<int>(lines_.size()); ++i)
    if (now > limit(Rank{i}, floor)) ranks.emplace_back(i);
  return ranks;
}

std::optional<Rank> Board::hanging(Clock::time_point now, const Floor& floor) const {
  for (const Rank rank : overdue(now, floor))
    if (line(rank).news > limit(rank, floor)) return rank;
  return std::nullopt;
}

Board::Clock::duration Board::until_next_limit(Clock::time_point now, const Floor& floor) const {
  auto least = Clock::time_point::max();
  for (int i = 0; i < static_cast<int>(lines_.size()); ++i)
    least = std::min(least, limit(Rank{i}, floor));
  return least > now ? least - now : Clock::duration(kAgain);
}

std::optional<Rank> Board::waits_for(Rank rank) const {
  const Activity& activity = line(rank).activity;
  const int peer = activity.peer.value;
  if (activity.doing != Doing::Waits || peer < 0 || peer >= static_cast<int>(lines_.size()))
    return std::nullopt;
  return activity.peer;
}

Rank Board::end_of_chain(Rank rank) const {
  std::vector<bool> met(lines_.size(), false);
  while (!met[rank.index()]) {
    met[rank.index()] = true;
    const auto next = waits_for(rank);
    if (!next) return rank;
    rank = *next;
  }
  return rank;
}

std::string Board::chain(Rank rank) const {
  const auto direct = waits_for(rank);
  if (!direct || !waits_for(*direct)) return {};
  std::string text = " (" + number(rank);
  std::vector<bool> met(lines_.size(), false);
  for (auto next = direct; next && !met[rank.index()]; next = waits_for(rank)) {
    met[rank.index()] = true;
    rank = *next;
    text += " <- " + std::to_string(rank.value);
  }
  return text + ")";
}

std::string Board::describe(Rank rank, Clock::time_point now) const {
  const Line& at = line(rank);
  if (!at.expected && at.activity.count == 0) return number(rank) + " is not watched from here";
  std::string text = number(rank) + " " + to_string(at.activity);
  if (at.left) return text;
  text += ", since " + seconds(now - at.activity.since);
  if (rank != self_) text += ", last heard " + seconds(now - at.heard) + " ago";
  return text + chain(rank);
}

std::string Board::report(Rank culprit, Clock::time_point now) const {
  const Activity& activity = line(culprit).activity;
  std::string text = "everyone waits for " + number(culprit) + ": " + action_of(activity) +
                     ", since " + seconds(now - activity.since);
  for (int i = 0; i < static_cast<int>(lines_.size()); ++i) text += "\n  " + describe(Rank{i}, now);
  return text;
}

}  // namespace millrace::zeromq
