// Which stages of a program have to run their forward again so that every rank stays within its
// memory.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "plan/model/work.hpp"

namespace millrace::plan {

/// By stage: whether it runs its forward again.
using RecomputeChoice = std::vector<bool>;

/// Choices with which `program` (compute only, without recompute) stays within the limit at any
/// moment, none of them with a stage that it could do without. More recompute never makes an
/// order faster and never makes a rank hold more, so these are all that can be best for it. All of
/// them where there are few stages and actions; else those that giving stages back leads to, from
/// the costliest recompute on, from the first stage on and from the last. The choice without any
/// where that fits; empty where nothing does. `work` may be null.
/// Cost: O(actions 2^stages) up to about a million; else O(actions x chunks).
[[nodiscard]] std::vector<RecomputeChoice> fitting_choices(const Program& program,
                                                           const Cost& cost,
                                                           double limit,
                                                           Work* work);

inline constexpr std::size_t kMostChosenStages = 8;  ///< whose choices are all looked at

/// Every choice for `stages` stages, those of the first stages first.
[[nodiscard]] std::vector<RecomputeChoice> all_choices(std::size_t stages);

/// The cost with the memory of a schedule that recomputes whatever it likes, at no time: no
/// schedule with any choice holds less at any moment.
[[nodiscard]] Cost with_least_memory(Cost cost);

}  // namespace millrace::plan
