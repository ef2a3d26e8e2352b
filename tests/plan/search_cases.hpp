// The cases of the search's tests: a committed set of small pipelines with unequal stages, ranks
// and links, and a brute-force oracle that tries every order of the tiny ones.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/search.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::test {

/// One pipeline: shape, integer costs, memory limit, what to minimise.
struct SmallCase {
  Shape shape;
  Cost cost;
  double memory_limit = std::numeric_limits<double>::infinity();
  Objective objective = Objective::Makespan;
  bool fused = false;
  std::vector<bool> recompute = {};  ///< by stage; empty: none
  bool any_recompute = false;        ///< of every micro-batch or not, each in its own way
};

/// Draws case `number` of p ranks and m micro-batches: stage costs 1 to 9, every third with link
/// latencies, every fourth with one slower rank, limits between 1 and m micro-batches, both
/// objectives, split and full backward.
inline SmallCase small_case(int number, int ranks, int micro_batches, Placement placement) {
  RandomKey key{
      .seed = 20240, .purpose = Purpose::Test, .step = static_cast<std::uint64_t>(number)};
  std::uint32_t drawn = 0;
  const auto draw = [&](std::uint32_t low, std::uint32_t high) {
    return static_cast<double>(low + random_below(key, drawn++, high - low + 1));
  };
  SmallCase result;
  result.shape.ranks = ranks;
  result.shape.micro_batches = micro_batches;
  result.shape.placement = std::move(placement);
  const auto stages = static_cast<std::size_t>(result.shape.stages());
  const auto all = static_cast<std::size_t>(ranks * ranks);
  for (std::size_t s = 0; s < stages; ++s) {
    result.cost.forward.push_back(draw(2, 9));
    result.cost.backward_input.push_back(draw(2, 9));
    result.cost.backward_weight.push_back(draw(1, 9));
    result.cost.memory_forward.push_back(4);
    result.cost.memory_input_peak.push_back(0);
    const double at_input = -draw(0, 3);
    result.cost.memory_input.push_back(at_input);
    result.cost.memory_weight.push_back(-4 - at_input);
  }
  if (number % 3 == 0)
    for (std::size_t link = 0; link < all; ++link) result.cost.link_latency.push_back(draw(0, 4));
  if (number % 4 == 0) {
    result.cost.rank_speed.assign(static_cast<std::size_t>(ranks), 1);
    result.cost
        .rank_speed[static_cast<std::size_t>(draw(0, static_cast<std::uint32_t>(ranks - 1)))] = 0.5;
  }
  if (number % 2 == 0)
    result.memory_limit =
        4 * result.shape.chunks() * draw(1, static_cast<std::uint32_t>(micro_batches));
  result.objective = number % 5 < 2 ? Objective::Span : Objective::Makespan;
  result.fused = number % 7 == 3;
  return result;
}

/// The committed set: p to 3 with m to 4, and p = 4 with m to 3, straight placement.
inline std::vector<SmallCase> committed_cases() {
  std::vector<SmallCase> cases;
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int micro_batches = 1; micro_batches <= (ranks == 4 ? 3 : 4); ++micro_batches)
      for (int draw = 0; draw < 4; ++draw)
        cases.push_back(small_case(
            static_cast<int>(cases.size()), ranks, micro_batches, Placement::straight(ranks)));
  return cases;
}

/// Beyond the committed set, up to p = 4 and m = 6: `draws` cases of every count.
inline std::vector<SmallCase> larger_cases(Placement (*placement)(int), int draws) {
  std::vector<SmallCase> cases;
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int micro_batches = ranks == 4 ? 4 : 5; micro_batches <= 6; ++micro_batches)
      for (int draw = 0; draw < draws; ++draw)
        cases.push_back(small_case(
            1000 + static_cast<int>(cases.size()), ranks, micro_batches, placement(ranks)));
  return cases;
}

/// What `search` is asked for a case: its counts, chunks, costs and limit.
inline SearchOptions search_options(const SmallCase& of, std::int64_t budget) {
  return {.ranks = of.shape.ranks,
          .micro_batches = of.shape.micro_batches,
          .chunks = of.shape.chunks(),
          .objective = of.objective,
          .memory_limit = of.memory_limit,
          .cost = [cost = of.cost](const Shape&) { return cost; },
          .budget = budget,
          .bidirectional = false};
}

/// Largest memory of any rank at any moment, inside its passes too.
inline double most_held(const Program& program, const Cost& cost) {
  double peak = 0;
  const auto m = static_cast<std::size_t>(program.shape.micro_batches);
  const auto q = static_cast<std::size_t>(program.shape.slices);
  const auto unit = [&](const Action& action) {
    return (action.stage.index() * m + action.micro_batch.index()) * q + action.slice.index();
  };
  std::vector<bool> recomputed(static_cast<std::size_t>(program.shape.stages()) * m * q);
  for (const auto& list : program.ranks)
    for (const Action& action : list)
      if (action.op == Op::Recompute) recomputed[unit(action)] = true;
  for (const auto& list : program.ranks) {
    double memory = 0;
    for (const Action& action : list) {
      const std::size_t s = action.stage.index();
      const double boundary = cost.memory_boundary.empty() ? 0 : cost.memory_boundary[s];
      const bool again = action.op == Op::Recompute;
      if (!cost.memory_forward_peak.empty() && (again || action.op == Op::Forward))
        peak = std::max(
            peak, memory + (cost.memory_forward_peak[s] - (again ? boundary : 0)) / cost.slices);
      if (action.op == Op::Forward)
        memory += (recomputed[unit(action)] ? boundary : cost.memory_forward[s]) / cost.slices;
      if (action.op == Op::Recompute) memory += (cost.memory_forward[s] - boundary) / cost.slices;
      peak = std::max(peak, memory);
      if (gives_input_gradient(action.op)) {
        if (!cost.memory_input_peak.empty())
          peak = std::max(peak, memory + cost.memory_input_peak[s] / cost.slices);
        memory += cost.memory_input[s] / cost.slices;
        peak = std::max(peak, memory);
      }
      if (gives_weight_gradient(action.op)) memory += cost.memory_weight[s] / cost.slices;
      peak = std::max(peak, memory);
    }
  }
  return peak;
}

/// Objective of a program by the public simulation; infinite when it deadlocks.
inline double simulated(const Program& program, const Cost& cost, Objective objective) {
  const Graph graph(program);
  const auto result = simulate(graph, cost);
  const auto* timeline = std::get_if<Timeline>(&result);
  if (timeline == nullptr) return std::numeric_limits<double>::infinity();
  const Report figures = report(graph, cost, *timeline);
  return objective == Objective::Makespan ? figures.makespan : figures.span;
}

}  // namespace millrace::test
