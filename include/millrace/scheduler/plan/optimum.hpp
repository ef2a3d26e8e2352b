// The best that a schedule can be: the objective, list scheduling, a lower bound and the exact
// solver.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/parameters.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/shape.hpp"

namespace millrace {

/// Makespan: from the first op of any rank to the last op of any rank, what one step costs with a
/// barrier. Span: what a step costs when steps overlap, the smallest T at which the order runs,
/// with any starts, so that no rank needs longer than T from its first op to its last
/// (Report::span).
enum class Objective : std::uint8_t { Makespan, Span };

/// A lower bound, in the user's units (ticks / ticks_per_unit), on the makespan or the span of
/// every program of `shape` with full, split or mixed backward that stays within `memory_limit`
/// at any moment, and in which the stages that `recompute` says (by stage; empty: none) run
/// their forward again right before their backward. Infinite when not even one forward, or one
/// recompute, fits under the limit.
///
/// **Why it holds**, for any stage costs, rank speeds and links:
/// 1. *Relaxed times.* I lasts I' = min(I, B) and W lasts W' = min(B, I + W) - I'. A full backward
///    covers an I' followed at once by a W', so every schedule contains one of the relaxed times.
/// 2. *First in, first out.* All micro-batches of a replica cost the same. Give the j-th earliest
///    action of a class (stage and kind) to the j-th micro-batch. If every x_i ends before its y_i
///    starts, then the j-th earliest x ends before the j-th earliest y starts, so all dependencies
///    still hold, with the same slots and the same memory. Hence chains "the j-th of a class after
///    the (j-1)-th of it" may be assumed.
/// 3. *Memory.* Before the j-th F of a stage starts, enough W (and I) of that stage have ended that
///    the stage's own share fits under the limit; the other chunks of the rank hold at least 0.
///    Under 2 these are the first ones, so "F_j after W_n" may be assumed with the smallest n. An I
///    (or B) that runs after F_j needs what it holds only while it runs besides, so as many I have
///    ended before F_j as make room for that, and before an I as many W. Costs with which a
///    micro-batch ever holds less than 0 have no such chains.
/// 4. *Heads and tails.* Longest paths over the dependencies with their message times and the
///    chains of 2 and 3 give every action an earliest start and a least time from its end to the
///    end. For the makespan they count from the first start and to the last end of all ranks. For
///    the span from the first start and to the last end of one rank, whose every action starts no
///    earlier and ends no later, at whatever time that rank starts; so for one rank after the
///    other. Actions without such a path are left out.
/// 5. *One rank at a time.* A rank runs one action at once. The best preemptive schedule of its
///    actions with these heads and tails (Jackson's rule: of what is ready, the longest tail) is a
///    lower bound; so is the largest over ranks. It is at least head + all work + smallest tail.
///
/// With several data-parallel replicas the smallest of the stages' sums is added: what ends last on
/// a rank is the last B or W of one of its stages. Of several passes (Cost::passes) the makespan is
/// that of all of them, each of which is bounded like this, with a sum after the last.
///
/// A recompute and its backward count as one action of their ranks, which needs the gradient only
/// when the recompute has ended.
///
/// With several slices only 1, 4 without chains and 5 are used: slices differ in cost. Link
/// contention and shared processors are not supported (InvalidArgument).
/// Throws Stopped when `stop` says so. Cost: O(stages x micro-batches x log); for the span as often
/// as there are ranks, but for no more than 2 million actions in all, the rank of the first stage
/// and the busiest ones first. Source: Jackson's preemptive schedule, as in Carlier and Pinson, "An
/// algorithm for solving the job-shop problem", Management Science 35 (1989).
[[nodiscard]] double lower_bound(const Shape& shape,
                                 const Cost& cost,
                                 Objective objective,
                                 double memory_limit = std::numeric_limits<double>::infinity(),
                                 const Stop& stop = {},
                                 const std::vector<bool>& recompute = {});

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

/// When a pending backward-weight runs.
enum class WeightRule : std::uint8_t {
  Filler,      ///< whenever nothing else can start at the rank's clock
  FitsGap,     ///< as Filler, but not where it would delay an action whose start is known
  ByPriority,  ///< by its own priority, as every other action
};

struct ListOptions {
  /// Largest memory of a rank at any moment, in the units of Cost::memory_*.
  double memory_limit = std::numeric_limits<double>::infinity();
  WeightRule weight_rule = WeightRule::Filler;
};

/// Orders the actions of `program` by list scheduling.
///
/// State per rank: clock, memory, the next action of each class (stage and F or I/B; a class runs
/// in the order of its priorities) and the pending W, first come first served. Repeatedly, every
/// rank names its action with all producers scheduled and the smallest (start, priority); the rank
/// with the smallest start runs it. A forward is admitted only if the memory left also holds every
/// forward of the rank with a smaller priority value, and the most that an I (or B) of it adds
/// while it runs (a reservation against deadlock by memory).
///
/// `priority[r][i]` belongs to `program.ranks[r][i]`; smaller runs first. The result holds the same
/// actions, pairs decoupled, and stays within the limit at any moment. None: the actions do
/// not fit under the limit in this way. A recompute must stand right before its backward and stays
/// there; its priority is not read. Throws InvalidArgument when the sizes do not match, for other
/// recompute, messages or reductions in the program, and for link contention or shared processors.
/// Cost: O(actions x (log ranks + chunks log micro-batches)). Pure function.
[[nodiscard]] std::optional<Program> list_schedule(const Program& program,
                                                   const Cost& cost,
                                                   const std::vector<std::vector<double>>& priority,
                                                   const ListOptions& options = {});

struct RelistOptions {
  double memory_limit = std::numeric_limits<double>::infinity();
  Objective objective = Objective::Makespan;
  int rounds = 6;  ///< at most this many times the result is relisted again
};

/// List-schedules `program` again with its own start times as priorities, each weight rule in turn,
/// and continues from the better result. Never worse than `program` if that is within the limit;
/// none if neither the program nor any list schedule is. Throws as list_schedule does. Cost: at
/// most 3 rounds list schedules.
[[nodiscard]] std::optional<Program> relist(const Program& program,
                                            const Cost& cost,
                                            const RelistOptions& options = {});

/// `program` relisted for the makespan within the memory that it takes by itself: what a published
/// order becomes where its rule does not suit the times. The same program where that is no shorter.
/// Throws and costs as relist does.
[[nodiscard]] Program relist_within_own_memory(const Program& program, const Cost& cost);

}  // namespace millrace
