// What every rank measures of its own actions, and how rank 0 gets the whole picture from all of
// them after the last step.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cli/train/options.hpp"
#include "cli/train/report.hpp"
#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/training/team.hpp"
#include "millrace/training/trainer.hpp"

namespace millrace::cli {

/// Keeps the timelines of the last full mini-batches, at most 32 of them and 4 MiB.
/// Thread-safety: externally synchronised.
class RankMeasurement {
 public:
  /// Both must outlive this.
  RankMeasurement(const TrainJob& job, const Trainer& trainer, Rank rank);

  void after_step(const StepReport& report);

  /// The rank's own idle share of the last step, from its first action to its last.
  [[nodiscard]] double bubble() const;

  /// The whole: every rank's rows of the last step on one clock, and the costs.
  struct Whole {
    Timeline last;
    Cost cost;
  };

  /// Fills the outcome's measured and simulated use and its stash peaks, on all ranks alike. Every
  /// rank calls this. Rows of ranks on one machine lie on one clock; those of other machines begin
  /// with the step.
  Whole gather(Team& team, TrainOutcome& outcome) const;

 private:
  struct Step {
    double started = 0;  ///< seconds on this machine's steady clock
    std::vector<Interval> row;
  };

  [[nodiscard]] std::vector<std::int64_t> sizes() const;
  [[nodiscard]] std::string pack() const;
  static std::vector<Step> unpack(const std::string& text, std::string& machine);
  void add_memory(Team& team, Cost& cost) const;

  const TrainJob& job_;
  const Trainer& trainer_;
  const Rank rank_;
  std::size_t most_ = 0;
  std::deque<Step> steps_;
  std::int64_t seen_ = 0;
  std::vector<std::size_t> peaks_;
};

}  // namespace millrace::cli
