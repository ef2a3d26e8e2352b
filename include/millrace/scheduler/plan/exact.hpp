// solve_exact: the best order of a small pipeline, with the proof that it is the best. The oracle
// of the search's tests, and part of the search for cases that are small enough.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/objective.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/stop.hpp"

namespace millrace {

struct ExactOptions {
  Objective objective = Objective::Makespan;
  /// Largest memory of a rank at any moment, in the units of Cost::memory_*.
  double memory_limit = std::numeric_limits<double>::infinity();
  bool fused = false;                ///< full backward B instead of I and W
  std::vector<bool> recompute = {};  ///< by stage: runs its forward again; empty: none does
  /// Largest number of states that may be stored; about 500 bytes each for 4 ranks. Deterministic,
  /// where a time limit would not be.
  std::int64_t state_limit = 2'000'000;
  Stop stop = {};  ///< asked between states; solve_exact throws Stopped when it says so
};

struct ExactResult {
  std::optional<Program> program;  ///< the best found; none when nothing fits under the limit
  double value = std::numeric_limits<double>::infinity();  ///< its objective, in the user's units
  double lower_bound = 0;   ///< no schedule of this kind is below; equals value when proven
  bool proven = false;      ///< value is the optimum (or: nothing fits)
  std::int64_t states = 0;  ///< states stored
};

/// Minimises the makespan or the span of a one-replica shape under a memory limit, for any stage
/// costs, rank speeds, links and placement, over all programs with split (or all with full)
/// backward.
///
/// Method: states are cuts (how many of each class, that is stage and kind, have run) with the
/// times that still matter (rank clocks, messages under way, each raised to what the clock makes of
/// it anyway). Layer by layer in the number of actions:
/// 1. *First in, first out.* Within a class the micro-batches run in ascending order, without loss
///    (point 2 of lower_bound.hpp). So a class is a counter, and micro-batch symmetry is gone.
/// 2. *Active schedules* (Giffler and Thompson, Operations Research 8, 1960): let x on rank r be
/// the
///    action that can end first, at e. If the rank's next action started at e or later, x would fit
///    before it; so only actions of r that can start before e are tried. Under the limit x may be
///    kept from moving up by memory: if it adds memory and the rank's remaining forwards do not
///    all fit, the case "r starts nothing before e" is kept too and branches on the next such x. So
///    it is where a recompute of r, which does not wait for its gradient, can start before e.
/// 3. *Dominance.* Of two states with the same cut, one whose times are all at most the other's
///    can be completed in every way the other can, no later; the other is dropped.
/// 4. *Bound.* The relaxation of lower_bound.hpp from the state on; dropped when not below the best
///    known value, which list scheduling and a narrow run of the same search (a beam) give first.
/// Span: when each rank starts is open, so every time is a vector, one lane per rank: the longest
/// path from that rank's first start, minus infinity without one. A time is the largest over the
/// lanes of start + path, whatever the starts are. Then
/// - one time is at most another when it is so in every lane (in 2 and 3);
/// - in 2 several actions can be the one that ends first, depending on the starts; all of them are
///   branched on, unless on one rank what has no inputs yet starts, in every lane, after an action
///   that has;
/// - a path from the start of rank r to the end of rank s of c ticks is within the best known value
///   T only if s starts at least c - T after r. A cycle of such demands that is not below 0 drops
///   the state; otherwise a lane is raised to what the other lanes and these demands make of it,
///   which changes nothing for any starts that are left and lets 3 and 4 drop more.
/// Throws InvalidArgument for replicas or slices above 1.
/// Cost: exponential; 3 ranks and 4 micro-batches take well below a second. Deterministic.
[[nodiscard]] ExactResult solve_exact(const Shape& shape,
                                      const Cost& cost,
                                      const ExactOptions& options = {});

}  // namespace millrace
