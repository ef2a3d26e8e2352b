// The public bound: relaxed times, then the relaxation.
#include <algorithm>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/model/stage_sums.hpp"
#include "plan/search/relaxation.hpp"

namespace millrace {

namespace {

/// Times of I and W that every full or split backward contains.
Cost relaxed(const Cost& cost) {
  Cost result = cost;
  for (std::size_t i = 0; i < cost.backward.size(); ++i) {
    const double whole =
        std::min(cost.backward[i], cost.backward_input[i] + cost.backward_weight[i]);
    result.backward_input[i] = std::min(cost.backward_input[i], cost.backward[i]);
    result.backward_weight[i] = whole - result.backward_input[i];
  }
  return result;
}

}  // namespace

double lower_bound(const Shape& shape,
                   const Cost& cost,
                   Objective objective,
                   double memory_limit,
                   const Stop& stop,
                   const std::vector<bool>& recompute) {
  cost.require_fits(shape);
  plan::Work work(stop);
  Program all = plan::everything(shape, false);
  if (!recompute.empty()) all = insert_recompute(all, recompute);
  const plan::Job job(std::move(all), relaxed(cost), &work);
  const int passes = objective == Objective::Makespan ? cost.passes : 1;
  const double bound = passes * plan::Relaxation(job, objective, memory_limit).bound() +
                       plan::least_sum(shape, cost, objective);
  return bound / cost.ticks_per_unit;
}

}  // namespace millrace
