// The public bound: relaxed times, then the relaxation.
#include <algorithm>
#include <array>
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

/// Times of which every pair takes at least the sum, so that a schedule with pairs contains one of
/// these times without.
Cost unpaired(Cost cost) {
  if (cost.backward.empty())
    for (std::size_t i = 0; i < cost.forward.size(); ++i)
      cost.backward.push_back(cost.backward_input[i] + cost.backward_weight[i]);
  const std::array times = {
      &cost.forward, &cost.backward, &cost.backward_input, &cost.backward_weight};
  for (std::size_t i = 0; i < times.size(); ++i)  // F first: what runs with it takes the rest
    for (std::size_t j = 0; j < times.size(); ++j) {
      const double both = cost.pair.of(static_cast<Op>(i), static_cast<Op>(j));
      if (both < 0) continue;
      double other = both / 2;
      if (i == 0 && j > 0) other = 0;
      if (i > 0 && j == 0) other = *std::ranges::max_element(cost.forward);
      for (double& ticks : *times[i]) ticks = std::min(ticks, both - other);
    }
  return cost;
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
  const plan::Job job(std::move(all), relaxed(cost.pair.any() ? unpaired(cost) : cost), &work);
  const int passes = objective == Objective::Makespan ? cost.passes : 1;
  const double bound = passes * plan::Relaxation(job, objective, memory_limit).bound() +
                       plan::least_sum(shape, cost, objective);
  return bound / cost.ticks_per_unit;
}

}  // namespace millrace
