// What every rank last said it was doing: finds the one that is silent or makes no progress,
// follows who waits for whom, and writes the report. No sockets, no clock of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"
#include "transport/liveness/progress_slot.hpp"

namespace millrace {

/// Thread-safety: externally synchronised.
class LivenessMonitor {
 public:
  using Clock = std::chrono::steady_clock;
  /// What the user wants an action to be allowed at least.
  using Floor = std::optional<Clock::duration>;

  LivenessMonitor(Rank self, int world, Clock::time_point now);

  /// `rank` said at `now` what it does; older news than what is known is ignored.
  void note(Rank rank, const Activity& activity, Clock::time_point now);
  /// Something was heard from `rank`.
  void heard(Rank rank, Clock::time_point now);
  /// Nothing need be heard from `rank` for it to be well, until something was; or it need, which is
  /// so for every rank from the start.
  void excuse(Rank rank) { lines_[rank.index()].expected = false; }
  void expect(Rank rank) { lines_[rank.index()].expected = true; }
  [[nodiscard]] bool expects(Rank rank) const { return line(rank).expected; }
  /// One more connection stands.
  void progressed(Clock::time_point now) { progressed_ = now; }
  void left(Rank rank);
  [[nodiscard]] bool has_left(Rank rank) const { return line(rank).left; }
  /// This process itself did not run for `pause` until now: timeouts restart.
  void suspended(Clock::duration pause);

  /// A rank from which nothing was heard for longer than `limit`; of several, the one that the
  /// others wait for. As long as connections come to stand, ranks that were not heard yet are not
  /// silent. A rank that receives from none of several is likely isolated itself, and gives the
  /// others as long again to name whom they miss.
  [[nodiscard]] std::optional<Rank> silent(Clock::time_point now, Clock::duration limit) const;

  /// A rank that was in an action, when it last said so, for longer than the action may take.
  [[nodiscard]] std::optional<Rank> hanging(Clock::time_point now, const Floor& floor) const;

  /// The ranks that would be hanging if they were still in what they last said.
  [[nodiscard]] std::vector<Rank> overdue(Clock::time_point now, const Floor& floor) const;

  /// How long none of them can become overdue; a tenth of a second where one is already.
  [[nodiscard]] Clock::duration until_next_limit(Clock::time_point now, const Floor& floor) const;

  /// How long an action may take. When a hundred of its kind (op and stage) have ended on its rank:
  /// eight times what 99 of 100 of them took, but at least a second, and 0.2 s. Before: ten
  /// seconds, or sixteen times the longest of its kind, if that is more, and twelve times ten
  /// seconds where none has ended yet. `floor` replaces the ten seconds and is the least of all.
  /// Only what ended teaches what is long: a slow rank stretches its own limit. What a rank does
  /// outside the program (data, hooks, measuring, saving) has no limit.
  [[nodiscard]] static Clock::duration limit_of(const Activity& activity, const Floor& floor);

  /// Where the chain of waits that begins at `rank` ends: a rank that does not wait, or does not
  /// answer, or the first to be met again.
  [[nodiscard]] Rank end_of_chain(Rank rank) const;

  /// The block of a report: what all ranks wait for and since when, then one line per rank with
  /// its chain of waits.
  [[nodiscard]] std::string report(Rank culprit, Clock::time_point now) const;

 private:
  struct Line {
    Activity activity;
    bool left = false;
    bool met = false;      // was heard at all
    bool expected = true;  // to be heard
    Clock::time_point heard;
    Clock::time_point news;       // when it said that it was in the activity
    Clock::duration suspended{};  // of the activity's time
  };

  [[nodiscard]] const Line& line(Rank rank) const { return lines_[rank.index()]; }
  [[nodiscard]] bool is_isolated(Clock::time_point now, Clock::duration limit) const;
  [[nodiscard]] Clock::time_point limit(Rank rank, const Floor& floor) const;
  [[nodiscard]] std::optional<Rank> waits_for(Rank rank) const;
  [[nodiscard]] std::string replica_of(Rank rank) const;
  [[nodiscard]] std::string chain(Rank rank) const;
  [[nodiscard]] std::string describe(Rank rank, Clock::time_point now) const;

  Rank self_;
  std::vector<Line> lines_;
  Clock::time_point progressed_;  // when a connection came to stand, or a rank was heard at last
};

}  // namespace millrace
