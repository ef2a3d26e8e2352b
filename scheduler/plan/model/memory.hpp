// Memory: what each action adds and frees, walked along one rank's list.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "plan/model/tree_replay.hpp"

namespace millrace::plan {

/// Change of a rank's memory by one action.
struct MemoryChange {
  double start = 0;      ///< when it begins
  double transient = 0;  ///< on top, only while it runs
  double end = 0;        ///< when it ends
};

/// The changes of a program's actions under a cost, in one pass of a step. Requires a cost that
/// fits and a program whose actions lie inside the shape.
class MemoryModel {
 public:
  /// Of the first pass.
  MemoryModel(const Program& program, const Cost& cost);

  /// Moves to the next pass. Only a tree of sums knows one from another. Cost: O(actions).
  void next_pass();
  /// Passes that may differ.
  [[nodiscard]] int passes() const { return sums_.empty() ? 1 : cost_->passes; }
  /// What a rank holds before this pass: sums that the passes before have left.
  [[nodiscard]] double held(Rank rank) const { return held_.empty() ? 0 : held_[rank.index()]; }

  [[nodiscard]] MemoryChange change(const Action& action) const;
  /// Stashes taken (+1) at the start and dropped (-1) at the end of an action.
  [[nodiscard]] int stashes_taken(const Action& action) const;
  [[nodiscard]] int stashes_dropped(const Action& action) const;

 private:
  void replay_sums();
  [[nodiscard]] MemoryChange with_sums(const Action& action, MemoryChange change) const;
  [[nodiscard]] bool recomputed(const Action& action) const;
  [[nodiscard]] std::size_t at(const Action& action) const;

  const Program* program_;
  const Cost* cost_;
  std::vector<bool> recomputed_;   // by stage and unit; empty when nothing is
  std::vector<SumsHeld> sums_;     // likewise, around the B or W; empty without a tree of sums
  std::vector<TreeReplay> trees_;  // by stage, behind this pass
  std::vector<double> held_;       // by rank, before it
  int pass_ = 0;
};

/// Highest level along one rank's list, in program order: of one pass, or of all.
struct MemoryPeak {
  double activation = 0;     ///< stashes, in micro-batches of a full stage
  double bytes = 0;          ///< most at any moment, inside actions too: what a limit bounds
  std::size_t position = 0;  ///< the action that reaches it first
  double left = 0;           ///< after the last op
};

[[nodiscard]] MemoryPeak peak_memory(const Program& program,
                                     const Cost& cost,
                                     const MemoryModel& model,
                                     Rank rank);

/// By rank, over all passes of a step. Cost: O(actions), with a tree of sums for each pass.
[[nodiscard]] std::vector<MemoryPeak> memory_peaks(const Program& program, const Cost& cost);

}  // namespace millrace::plan
