// The engine under list_schedule and relist, on the flat job: the search calls it thousands of
// times without building programs.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/list_schedule.hpp"
#include "plan/search/evaluator.hpp"
#include "plan/search/job.hpp"

namespace millrace::plan {

/// Orders a job; `priority` by node, smaller first. None: stuck under the memory limit.
[[nodiscard]] std::optional<JobOrder> list_order(const Job& job,
                                                 std::span<const double> priority,
                                                 const ListOptions& options);

/// An order with its figures.
struct Listed {
  JobOrder order;
  Figures figures;
};

/// Whether a peak is within a limit, up to rounding.
[[nodiscard]] inline bool within_limit(double peak, double limit) {
  return peak <= limit * (1 + 1e-9);
}

/// Relists `order` up to `options.rounds` times; `evaluations` is increased by every order that was
/// timed. None: nothing within the limit was found.
[[nodiscard]] std::optional<Listed> relist_order(const Job& job,
                                                 const JobOrder& order,
                                                 const RelistOptions& options,
                                                 std::int64_t& evaluations);

}  // namespace millrace::plan
