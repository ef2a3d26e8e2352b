// What every rank last said it was doing: finds the one that is silent or does not get on, and
// writes the report. No sockets, no clock of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"

namespace millrace::zeromq {

/// Thread-safety: externally synchronised.
class Board {
 public:
  using Clock = std::chrono::steady_clock;

  Board(Rank self, int world, Clock::time_point now);

  /// `rank` says: I have done `count` things, now I do `what`, since `since`.
  void note(Rank rank,
            std::uint64_t count,
            bool waiting,
            const std::string& what,
            Clock::time_point since,
            Clock::time_point now);
  /// Something was heard from `rank`.
  void heard(Rank rank, Clock::time_point now);
  void left(Rank rank);
  /// This process itself did not run for `pause`: nobody else is to blame for that.
  void forgive(Clock::duration pause);

  /// A rank from which nothing was heard for longer than `limit`.
  [[nodiscard]] std::optional<Rank> silent(Clock::time_point now, Clock::duration limit) const;

  /// A rank that does not wait for others and whose action takes longer than `floor` and than eight
  /// times its longest so far. Only actions that ended teach what is long: a slow rank stretches
  /// its own limit.
  [[nodiscard]] std::optional<Rank> hanging(Clock::time_point now, Clock::duration floor) const;

  /// One line per rank: what it does and since when.
  [[nodiscard]] std::string report(Clock::time_point now) const;

  /// "rank 2, which computes F of stage 2 ... since 3.1 s".
  [[nodiscard]] std::string describe(Rank rank, Clock::time_point now) const;

 private:
  struct Line {
    std::uint64_t count = 0;
    bool waiting = true;
    bool left = false;
    std::string what = "has not reported yet";
    Clock::time_point since;
    Clock::time_point heard;
    Clock::duration longest{};
  };

  Rank self_;
  std::vector<Line> lines_;
};

}  // namespace millrace::zeromq
