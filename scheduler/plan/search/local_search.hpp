// Local search: moves actions on their ranks, guided by the critical path.
#pragma once

#include <cstdint>

#include "plan/search/evaluator.hpp"
#include "plan/search/unit_choice.hpp"

namespace millrace::plan {

struct LocalSearchOptions {
  Objective objective = Objective::Makespan;
  double memory_limit = std::numeric_limits<double>::infinity();
  std::int64_t evaluations = 0;  ///< orders that may be timed
  std::uint64_t seed = 1;
  std::uint32_t stream = 0;  ///< which of several searches with one seed
  double goal = 0;           ///< stop when reached: nothing is better
};

/// An order, and by node whether it leads a pair; none where no pairs run as one.
struct PairedOrder {
  JobOrder order;
  std::vector<bool> leads;
};

/// Improves `order`, which with the job's own pairs must run to its end within the limit. Returns
/// the best order met; adds the orders timed to `evaluations`. Where the job's work is stopped,
/// what was met until then.
[[nodiscard]] PairedOrder local_search(const Job& job,
                                       JobOrder order,
                                       const LocalSearchOptions& options,
                                       std::int64_t& evaluations);

/// The same, moving the choice of recompute too: leaves the one that suits the order returned.
[[nodiscard]] JobOrder local_search(UnitChoice& choice,
                                    JobOrder order,
                                    const LocalSearchOptions& options,
                                    std::int64_t& evaluations);

}  // namespace millrace::plan
