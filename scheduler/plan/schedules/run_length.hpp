// Run-length programs: a rank's list written as "count times these ops", the form in which the
// hand-written V schedules are published. Micro-batches are not written: each chunk's forwards,
// backwards and weights count up on their own.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace::generators {

inline constexpr int kOldest = -1;  ///< chunk of a weight half that takes the oldest one owed

/// One op of a step. `with_next` marks the first half of an overlapped pair.
struct Token {
  Op op;
  int chunk;
  bool with_next = false;
};

/// `count` times `tokens`, in order. A count of 0 or less is an empty step.
struct Step {
  int count;
  std::vector<Token> tokens;
};

/// Expands the steps of one rank that holds `stages` (chunk 0 first). Full backwards and input
/// halves of a chunk share one count. Actions of micro-batches at or past `micro_batches` are left
/// out. Cost: O(actions).
[[nodiscard]] std::vector<Action> expand(const std::vector<Step>& steps,
                                         const std::vector<Stage>& stages,
                                         int micro_batches);

}  // namespace millrace::generators
