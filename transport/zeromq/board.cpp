// See board.hpp.
#include "transport/zeromq/board.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace millrace::zeromq {

namespace {

constexpr int kStretch = 16;     // times the longest of its kind
constexpr int kFirstTimes = 12;  // times the floor, where nothing is known yet

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
    : self_(self), lines_(static_cast<std::size_t>(world)) {
  for (Line& line : lines_) line.activity.since = line.heard = now;
}

void Board::note(Rank rank, const Activity& activity) {
  Line& line = lines_[rank.index()];
  if (activity.count >= line.activity.count) line.activity = activity;
}

void Board::heard(Rank rank, Clock::time_point now) {
  lines_[rank.index()].heard = now;
}

void Board::left(Rank rank) {
  lines_[rank.index()].left = true;
  lines_[rank.index()].activity.doing = Doing::Left;
}

void Board::forgive(Clock::duration pause, Clock::time_point now) {
  for (Line& line : lines_) {
    line.heard += pause;
    line.counts_from = now;
  }
}

Board::Clock::duration Board::limit_of(const Activity& activity, Clock::duration floor) {
  const bool known =
      activity.doing == Doing::Works && activity.longest != std::chrono::nanoseconds::zero();
  return std::max<Clock::duration>(known ? floor : kFirstTimes * floor,
                                   kStretch * activity.longest);
}

std::optional<Rank> Board::silent(Clock::time_point now, Clock::duration limit) const {
  const auto is_silent = [&](Rank rank) {
    return rank != self_ && !line(rank).left && now - line(rank).heard > limit;
  };
  std::optional<Rank> found;
  for (int i = 0; i < static_cast<int>(lines_.size()) && !found; ++i)
    if (is_silent(Rank{i})) found = Rank{i};
  if (!found) return found;
  const Rank end = end_of_chain(*found);
  return is_silent(end) ? end : found;
}

std::optional<Rank> Board::hanging(Clock::time_point now, Clock::duration floor) const {
  for (int i = 0; i < static_cast<int>(lines_.size()); ++i) {
    const Activity& activity = line(Rank{i}).activity;
    if (line(Rank{i}).left || !activity.is_own_work()) continue;
    if (now - std::max(activity.since, line(Rank{i}).counts_from) > limit_of(activity, floor))
      return Rank{i};
  }
  return std::nullopt;
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
