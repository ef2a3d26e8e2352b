// See board.hpp.
#include "transport/zeromq/board.hpp"

#include <algorithm>
#include <cstdio>

namespace millrace::zeromq {

namespace {

std::string seconds(Board::Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

Board::Board(Rank self, int world, Clock::time_point now)
    : self_(self), lines_(static_cast<std::size_t>(world)) {
  for (Line& line : lines_) line.since = line.heard = now;
}

void Board::note(Rank rank,
                 std::uint64_t count,
                 bool waiting,
                 const std::string& what,
                 Clock::time_point since,
                 Clock::time_point now) {
  Line& line = lines_[rank.index()];
  line.heard = now;
  if (count < line.count) return;  // arrived late
  if (count > line.count && !line.waiting && line.count != 0)
    line.longest = std::max(line.longest, since - line.since);
  line.count = count;
  line.waiting = waiting;
  line.what = what;
  line.since = since;
}

void Board::heard(Rank rank, Clock::time_point now) {
  lines_[rank.index()].heard = now;
}

void Board::left(Rank rank) {
  lines_[rank.index()].left = true;
  lines_[rank.index()].what = "has said goodbye";
}

void Board::forgive(Clock::duration pause) {
  for (Line& line : lines_) {
    line.since += pause;
    line.heard += pause;
  }
}

std::optional<Rank> Board::silent(Clock::time_point now, Clock::duration limit) const {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const Rank rank{static_cast<std::int32_t>(i)};
    if (rank != self_ && !lines_[i].left && now - lines_[i].heard > limit) return rank;
  }
  return std::nullopt;
}

std::optional<Rank> Board::hanging(Clock::time_point now, Clock::duration floor) const {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const Line& line = lines_[i];
    if (line.left || line.waiting || line.count == 0) continue;
    if (now - line.since > std::max(floor, 8 * line.longest))
      return Rank{static_cast<std::int32_t>(i)};
  }
  return std::nullopt;
}

std::string Board::describe(Rank rank, Clock::time_point now) const {
  const Line& line = lines_[rank.index()];
  std::string text = "rank " + std::to_string(rank.value) + " " + line.what;
  if (!line.left) text += ", since " + seconds(now - line.since);
  if (rank != self_ && !line.left) text += ", last heard " + seconds(now - line.heard) + " ago";
  return text;
}

std::string Board::report(Clock::time_point now) const {
  std::string text;
  for (std::size_t i = 0; i < lines_.size(); ++i)
    text += "\n  " + describe(Rank{static_cast<std::int32_t>(i)}, now);
  return text;
}

}  // namespace millrace::zeromq
