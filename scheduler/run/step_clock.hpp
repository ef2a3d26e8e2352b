// The measured timeline of a step: one interval per action in seconds since the step began, in rows
// that are made once.
#pragma once

#include <chrono>
#include <vector>

#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::run {

/// Thread-safety: `begin` alone; afterwards any thread, each action's interval by one thread.
class StepClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Rows for the ranks that `runs_here` says; the others stay empty. Nothing is recorded, and all
  /// rows are empty, unless `records`.
  template <class RunsHere>
  StepClock(const Program& program, bool records, RunsHere runs_here) : records_(records) {
    timeline_.ranks.resize(program.ranks.size());
    for (std::size_t i = 0; records && i < program.ranks.size(); ++i)
      if (runs_here(Rank{static_cast<int>(i)})) timeline_.ranks[i].resize(program.ranks[i].size());
  }

  [[nodiscard]] bool records() const { return records_; }
  [[nodiscard]] static Time now() { return std::chrono::steady_clock::now(); }
  [[nodiscard]] const Timeline& timeline() const { return timeline_; }

  void begin() { start_ = now(); }
  [[nodiscard]] Time started() const { return start_; }

  /// Where the action's interval goes, the same in every step; null when nothing is recorded.
  [[nodiscard]] Interval* place(Rank rank, std::size_t position) {
    return records_ ? &timeline_.ranks[rank.index()][position] : nullptr;
  }

  void note(Interval& place, Time start, Time end) const { place = {seconds(start), seconds(end)}; }

  void note(Rank rank, std::size_t position, Time start, Time end) {
    note(timeline_.ranks[rank.index()][position], start, end);
  }

 private:
  [[nodiscard]] double seconds(Time time) const {
    return std::chrono::duration<double>(time - start_).count();
  }

  bool records_;
  Time start_{};
  Timeline timeline_;
};

}  // namespace millrace::run
