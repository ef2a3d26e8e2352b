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
/// these times without: what an F runs with takes less, or the F does.
Cost unpaired(Cost cost, bool forward_less) {
  const auto most = [](const std::vector<double>& times) {
    return *std::ranges::max_element(times);
  };
  const auto cap = [](std::vector<double>& times, double at) {
    for (double& ticks : times) ticks = std::clamp(ticks, 0.0, std::max(0.0, at));
  };
  if (cost.backward.empty())
    for (std::size_t i = 0; i < cost.forward.size(); ++i)
      cost.backward.push_back(cost.backward_input[i] + cost.backward_weight[i]);
  const std::array times = {
      &cost.forward, &cost.backward, &cost.backward_input, &cost.backward_weight};
  const auto op = [](std::size_t i) { return static_cast<Op>(i); };  // F, B, I, W
  for (std::size_t i = 0; i < times.size(); ++i)
    for (std::size_t j = 0; j < times.size(); ++j)
      if (const double both = cost.pair.of(op(i), op(j)); both >= 0)
        cap(*times[i], (i == 0) == (j == 0) ? both / 2 : both);
  for (std::size_t i = 1; i < times.size(); ++i)
    if (const double both = cost.pair.of(Op::Forward, op(i)); both >= 0)
      cap(forward_less ? cost.forward : *times[i],
          both - most(forward_less ? *times[i] : cost.forward));
  return cost;
}

double bound_of(const Shape& shape,
                const Cost& cost,
                Objective objective,
                double memory_limit,
                const Stop& stop,
                const std::vector<bool>& recompute) {
  plan::Work work(stop);
  Program all = plan::everything(shape, false);
  if (!recompute.empty()) all = insert_recompute(all, recompute);
  const plan::Job job(std::move(all), relaxed(cost), &work);
  const int passes = objective == Objective::Makespan ? cost.passes : 1;
  const double bound = passes * plan::Relaxation(job, objective, memory_limit).bound() +
                       plan::least_sum(shape, cost, objective);
  return bound / cost.ticks_per_unit;
}

}  // namespace

double lower_bound(const Shape& shape,
                   const Cost& cost,
                   Objective objective,
                   double memory_limit,
                   const Stop& stop,
                   const std::vector<bool>& recompute) {
  cost.require_fits(shape);
  const auto bound = [&](const Cost& of) {
    return bound_of(shape, of, objective, memory_limit, stop, recompute);
  };
  if (!cost.pair.any()) return bound(cost);
  return std::max(bound(unpaired(cost, false)), bound(unpaired(cost, true)));
}

}  // namespace millrace
