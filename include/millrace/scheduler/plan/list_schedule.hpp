// Timed list scheduling under a memory cap: the third of the generators that cover the field. Takes
// any placement, any costs, any cap, and a priority for every action; "relist" takes the priorities
// from the start times of an existing program and so repairs it for other costs or a tighter cap.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/objective.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

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
/// and goes on from the better result. Never worse than `program` if that is within the limit; none
/// if neither the program nor any list schedule is. Throws as list_schedule does.
/// Cost: at most 3 rounds list schedules.
[[nodiscard]] std::optional<Program> relist(const Program& program,
                                            const Cost& cost,
                                            const RelistOptions& options = {});

/// `program` relisted for the makespan within the memory that it takes by itself: what a published
/// order becomes where its rule does not suit the times. The same program where that is no shorter.
/// Throws and costs as relist does.
[[nodiscard]] Program relist_within_own_memory(const Program& program, const Cost& cost);

}  // namespace millrace
