// The engine under list_schedule, and of the generators and searches that are policies of it.
#pragma once

#include <limits>
#include <optional>
#include <span>

#include "millrace/scheduler/plan/optimum.hpp"
#include "plan/model/job.hpp"

namespace millrace::plan {

/// What a list scheduler goes by; see list_schedule.hpp.
struct ListPolicy {
  /// By node: of what could start first on a rank, the smaller runs.
  std::span<const double> priority;
  /// Admission: what a rank holds, of a forward also what the rank's forwards of smaller priority
  /// value take, and the most that an I adds.
  double memory_limit = std::numeric_limits<double>::infinity();
  WeightRule weight_rule = WeightRule::Filler;
};

/// Orders a job. None: stuck under the memory limit.
[[nodiscard]] std::optional<JobOrder> list_order(const Job& job, const ListPolicy& policy);

/// Whether a peak is within a limit, up to rounding.
[[nodiscard]] inline bool within_limit(double peak, double limit) {
  return peak <= limit * (1 + 1e-9);
}

}  // namespace millrace::plan
