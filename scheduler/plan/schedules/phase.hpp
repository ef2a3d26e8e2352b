// The phase program: one generator and a table of a few columns give every schedule whose ranks
// walk a fixed queue of forwards and a fixed queue of backwards.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// How the micro-batches are cut into consecutive groups. Inside a group the chunks follow one
/// another; inside a chunk the group's micro-batches.
enum class Grouping : std::uint8_t {
  Whole,       ///< one group of m
  Rounds,      ///< g = smallest g >= p with m mod g = 0 or >= p (m < p: g = m), or the option
  Small,       ///< g in [ceil(p/2), p], or the option
  CyclesOfP,   ///< max(1, m / p) cycles, as equal as possible
  CyclesOfPq,  ///< m / (p / q) cycles, as equal as possible
  FullCycles,  ///< the same, refused when a cycle has fewer than p slices
};

inline constexpr int kFused = -1;  ///< full backwards, no weight-gradient halves

/// One row of the table. On rank r, with g the first group:
///   warm = every forward, or slope (p-1-r) + (v-1) g q + q - 1
///   lag  = lag_per_rank * r weight-gradient halves behind the input-gradient halves, or fused
struct PhaseRow {
  Grouping grouping = Grouping::Whole;
  int slope = 1;
  int lag_per_rank = kFused;
  bool forwards_first = false;  ///< warm = every forward
  bool forward_only = false;    ///< no backward is owed
};

/// Group sizes of m micro-batches under `grouping`; they sum to m. Throws InvalidArgument for a
/// --group with which the schedule would stall.
[[nodiscard]] std::vector<int> group_sizes(Grouping grouping, const Request& options);

/// The phase program of `row`: warm-up forwards, then forward, backward (and, when split, a weight
/// half once more than `lag` are owed), then what is left. Cost: O(actions).
[[nodiscard]] Program phase_program(const PhaseRow& row, const Request& options);

}  // namespace millrace::generators
