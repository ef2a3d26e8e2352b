// What every rank last said it was doing: finds the one that is silent or does not get on, follows
// who waits for whom, and writes the report. No sockets, no clock of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"
#include "transport/zeromq/progress.hpp"

namespace millrace::zeromq {

/// Thread-safety: externally synchronised.
class Board {
 public:
  using Clock = std::chrono::steady_clock;

  Board(Rank self, int world, Clock::time_point now);

  /// `rank` says what it does; older news than what is known is ignored.
  void note(Rank rank, const Activity& activity);
  /// Something was heard from `rank`.
  void heard(Rank rank, Clock::time_point now);
  void left(Rank rank);
  /// This process itself did not run for `pause` until now: nobody is to blame for that.
  void forgive(Clock::duration pause, Clock::time_point now);

  /// A rank from which nothing was heard for longer than `limit`; of several, the one that the
  /// others wait for.
  [[nodiscard]] std::optional<Rank> silent(Clock::time_point now, Clock::duration limit) const;

  /// A rank that does not wait for others and whose action takes longer than its limit.
  [[nodiscard]] std::optional<Rank> hanging(Clock::time_point now, Clock::duration floor) const;

  /// How long an action may take: `floor`, or sixteen times the longest of its kind (op and stage)
  /// on its rank, if that is more. Work of which the rank has not ended one yet, and what it does
  /// outside the program (data, measuring, saving), has at least twelve times `floor`. Only what
  /// ended teaches what is long: a slow rank stretches its own limit.
  [[nodiscard]] static Clock::duration limit_of(const Activity& activity, Clock::duration floor);

  /// Where the chain of waits that begins at `rank` ends: a rank that does not wait, or does not
  /// answer, or the first to be met again.
  [[nodiscard]] Rank end_of_chain(Rank rank) const;

  /// The block of a report: what everybody waits for and since when, then one line per rank with
  /// its chain of waits.
  [[nodiscard]] std::string report(Rank culprit, Clock::time_point now) const;

 private:
  struct Line {
    Activity activity;
    bool left = false;
    Clock::time_point heard;
    Clock::time_point counts_from;  // no action hangs for what was before
  };

  [[nodiscard]] const Line& line(Rank rank) const { return lines_[rank.index()]; }
  [[nodiscard]] std::optional<Rank> waits_for(Rank rank) const;
  [[nodiscard]] std::string chain(Rank rank) const;
  [[nodiscard]] std::string describe(Rank rank, Clock::time_point now) const;

  Rank self_;
  std::vector<Line> lines_;
};

}  // namespace millrace::zeromq
