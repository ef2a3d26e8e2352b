// What a search says of schedules with several replicas of each stage where the pipeline has
// copies.
#pragma once

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "plan/search/evaluator.hpp"

namespace millrace::plan {

/// Behind the sums over copies of the pipeline, replicas of a stage give one another what they
/// have, one stage after the other in an order that the whole program decides. The evaluator, which
/// times passes and sums, leaves that out: its figures are never above these.
[[nodiscard]] inline bool gives_replicas(const Shape& shape, const Cost& cost) {
  return cost.data_parallel > 1 && shape.replicas() > 1;
}

/// The evaluator's figures of a program that runs, with makespan and span of its simulation with
/// all reductions. Cost: that of a report.
[[nodiscard]] Figures with_replicas(Figures figures, const Program& program, const Cost& cost);

}  // namespace millrace::plan
