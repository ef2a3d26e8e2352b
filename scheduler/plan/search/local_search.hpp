// Local search: moves actions on their ranks, guided by the critical path.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/search/evaluator.hpp"

namespace millrace::plan {

struct LocalSearchOptions {
  Objective objective = Objective::Makespan;
  double memory_limit = std::numeric_limits<double>::infinity();
  std::int64_t evaluations = 0;  ///< orders that may be timed
  std::uint64_t seed = 1;
  std::uint32_t stream = 0;         ///< which of several searches with one seed
  double goal = 0;                  ///< stop when reached: nothing is better
  std::function<bool()> stop = {};  ///< asked every 256 evaluations; empty: never
};

/// Improves `order`, which must run to its end within the limit. Returns the best order met; adds
/// the orders timed to `evaluations`.
[[nodiscard]] JobOrder local_search(const Job& job,
                                    JobOrder order,
                                    const LocalSearchOptions& options,
                                    std::int64_t& evaluations);

}  // namespace millrace::plan
