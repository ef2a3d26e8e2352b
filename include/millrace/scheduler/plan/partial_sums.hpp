// Partial sums: what waits while the gradients of a step's micro-batches are added by a tree
// instead of one behind the other, counted from the plan.
#pragma once

#include <cstddef>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

/// What a program's tree of sums holds beside the gradients of its stages themselves.
/// Thread-safety: a value.
struct PartialSumCount {
  std::vector<int> of_stage;            ///< the most sums of a stage at a time
  std::vector<std::size_t> rank_bytes;  ///< by rank: the most bytes of all its stages' at a time
};

/// Counts the sums of a step that adds gradients by SumTree: those that wait for their partner in
/// it; those of micro-batches whose passes (slices) are interrupted by another's; and the one that
/// a micro-batch has just made. Each has the `gradient_bytes` of its stage. Where a stage's
/// micro-batches come in ascending order they are at most log2(m) + 1, rounded up; what comes out
/// of order waits besides. Holds for the sums over `passes` runs of the program, in each of any
/// number of copies of the pipeline, where every micro-batch has samples and every stage can split
/// its backward as the program does. Zeros for a program without backwards.
/// Throws InvalidArgument for a program with copies of stages, actions outside its shape, another
/// number of stages and gradients, or fewer passes than 1. Cost: O(actions x log m x sums that
/// wait) for each pass.
[[nodiscard]] PartialSumCount partial_sums(const Program& program,
                                           const std::vector<std::size_t>& gradient_bytes,
                                           int passes = 1);

}  // namespace millrace
