#include "plan/search/shapes.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "millrace/scheduler/plan/optimum.hpp"
#include "plan/search/portfolio.hpp"

namespace millrace::plan {

namespace {

// The exact solver: ranks x micro-batches, and chunks.
constexpr int kExactUnits = 24;
constexpr int kExactChunks = 2;

bool is_small(const Shape& shape) {
  return shape.ranks * std::int64_t{shape.micro_batches} <= kExactUnits &&
         shape.chunks() <= kExactChunks && shape.replicas() == 1 && shape.slices == 1;
}

/// What no schedule of the shape is below: the work of the busiest rank in all passes, in the
/// user's units; 0 where pairs may take less.
double busiest_work(const Shape& shape, const Cost& cost) {
  if (cost.pair.any()) return 0;
  std::vector<double> units(static_cast<std::size_t>(shape.replicas()), 0);
  for (int m = 0; m < shape.micro_batches; ++m) ++units[shape.replica(MicroBatch{m}).index()];
  std::vector<double> work(static_cast<std::size_t>(shape.ranks), 0);
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage) {
      const std::size_t rank = shape.rank(Replica{replica}, Stage{stage}).index();
      const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[rank];
      for (int slice = 0; slice < shape.slices; ++slice) {
        const auto ticks = [&](Op op) {
          return cost.ticks(
              {.op = op, .stage = Stage{stage}, .micro_batch = {}, .slice = Slice{slice}});
        };
        const double split = ticks(Op::BackwardInput) + ticks(Op::BackwardWeight);
        const double least = ticks(Op::Forward) + std::min(split, ticks(Op::Backward));
        work[rank] += units[static_cast<std::size_t>(replica)] * least / speed;
      }
    }
  return cost.passes * *std::ranges::max_element(work) / cost.ticks_per_unit;
}

}  // namespace

bool exact_covers_all(const SearchOptions& options, const Cost& cost) {
  return (cost.backward.empty() || options.full_backward) && !cost.pair.any();
}

std::vector<BoundedChoice> choices_for(const SearchOptions& options,
                                       const BoundedShape& shape,
                                       const Cost& cost) {
  const auto stages = static_cast<std::size_t>(shape.shape.stages());
  if (!options.recompute || stages > kMostChosenStages)
    return {{RecomputeChoice(stages), shape.bound}};
  std::vector<BoundedChoice> choices;
  for (RecomputeChoice& choice : all_choices(stages)) {
    const double bound =
        lower_bound(shape.shape, cost, options.objective, options.memory_limit, {}, choice);
    choices.push_back({std::move(choice), std::max(bound, shape.bound)});
  }
  std::ranges::stable_sort(choices, {}, &BoundedChoice::bound);
  return choices;
}

void Shapes::note(const Shape& shape) {
  for (const BoundedShape& known : shapes_)
    if (known.shape == shape) return;
  shapes_.push_back({shape, busiest_work(shape, search_cost(options_, shape))});
}

void Shapes::raise_bounds(const std::function<void()>& before_each, const Stop& stop) {
  for (BoundedShape& each : shapes_) {
    before_each();
    const Cost cost = search_cost(options_, each.shape);
    const double bound = lower_bound(each.shape,
                                     options_.recompute ? with_least_memory(cost) : cost,
                                     options_.objective,
                                     options_.memory_limit,
                                     stop);
    each.bound = std::max(each.bound, bound);
  }
}

double Shapes::bound() const {
  double bound = std::numeric_limits<double>::infinity();
  for (const BoundedShape& shape : shapes_) bound = std::min(bound, shape.bound);
  return shapes_.empty() ? 0 : bound;
}

std::vector<BoundedShape*> Shapes::small() {
  std::vector<BoundedShape*> small;
  for (BoundedShape& shape : shapes_)
    if (is_small(shape.shape)) small.push_back(&shape);
  return small;
}

}  // namespace millrace::plan
