// The engine under relist, on the flat job: the search calls it thousands of times without building
// programs.
#pragma once

#include <cstdint>
#include <optional>

#include "millrace/scheduler/plan/optimum.hpp"
#include "plan/model/job.hpp"
#include "plan/search/evaluator.hpp"

namespace millrace::plan {

/// An order with its figures.
struct Listed {
  JobOrder order;
  Figures figures;
};

/// Relists `order` up to `options.rounds` times; `evaluations` is increased by every order that was
/// timed. None: nothing within the limit was found.
[[nodiscard]] std::optional<Listed> relist_order(const Job& job,
                                                 const JobOrder& order,
                                                 const RelistOptions& options,
                                                 std::int64_t& evaluations);

}  // namespace millrace::plan
