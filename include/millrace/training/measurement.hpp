// What a run measured, in the words of the plan: times per op and stage as Cost, bubble per rank,
// and the stash bytes that the plan predicts, to be held against those that were counted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/run/executor.hpp"

namespace millrace {

/// Busy seconds of one rank in one measured or simulated step.
struct RankUse {
  double busy = 0;  ///< inside F, B, I, W and recompute

  /// Idle share of a step that took `makespan`.
  [[nodiscard]] double bubble(double makespan) const {
    return makespan > 0 ? std::max(0.0, 1 - busy / makespan) : 0;
  }
};

/// How the ranks used one step.
struct StepUse {
  double makespan = 0;  ///< first start to last end of a compute action, over all ranks
  std::vector<RankUse> ranks;

  /// Idle share over all ranks.
  [[nodiscard]] double bubble() const;
};

/// Reads a timeline of `program`. Rows of ranks that ran elsewhere are empty and count as idle.
[[nodiscard]] StepUse step_use(const Program& program, const Timeline& timeline);

/// Averages the durations of a program's actions over steps.
/// Thread-safety: externally synchronised.
class Profile {
 public:
  /// `program` is the one that ran (Executor::program), and must outlive the profile.
  explicit Profile(const Program& program);
  explicit Profile(const Program&& program) = delete;

  /// Adds one step; `after_passes`: its seconds outside the timeline, where they are known.
  void add(const Timeline& timeline, double after_passes = 0);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// Mean use over the steps: mean makespan, mean busy time per rank.
  [[nodiscard]] StepUse use() const;

  /// Mean seconds of each op of each stage and slice over micro-batches and steps, and of a step
  /// outside its passes, with the stash
  /// bytes of `stages` for units of that size, as they are with the program's recomputes. A full
  /// backward that was never split is shared out evenly between I and W. Throws InvalidArgument
  /// before the first step.
  [[nodiscard]] Cost cost(std::span<const HostedStage> stages, const UnitSize& size) const;

 private:
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;

    [[nodiscard]] double value() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  };

  [[nodiscard]] std::vector<double> means(Op op) const;

  const Program* program_;
  std::vector<std::vector<Mean>> of_op_;  // [op][stage * slices + slice]
  std::vector<double> busy_;              // sums per rank
  double makespan_ = 0;
  double after_passes_ = 0;
  std::int64_t steps_ = 0;
};

/// The largest number of bytes each rank will stash in a step, from the program's order and
/// `StageBody::stash_bytes` alone, for units of these sizes (see unit_sizes). What StepResult
/// counts, exactly. Cost: O(actions). Throws InvalidArgument unless there is a size for every unit.
[[nodiscard]] std::vector<std::size_t> predict_stash_peaks(const Program& program,
                                                           std::span<const HostedStage> stages,
                                                           std::span<const UnitSize> sizes);

/// The bytes that a process of each rank has of the optimizer's arrays and of master values: so
/// many f32 arrays (Optimizer::slots) of its trained parameters, and one more of those that are
/// rounded. Spread over several copies (StepOptions::shard_optimizer) the largest share. What
/// TrainingState::optimizer_bytes counts, exactly; 0 for ranks that host none of `stages`. Cost:
/// O(parameters x copies).
[[nodiscard]] std::vector<std::size_t> predict_optimizer_bytes(const Shape& shape,
                                                               std::span<const HostedStage> stages,
                                                               int slots,
                                                               int copies = 1);

}  // namespace millrace
