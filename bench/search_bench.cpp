// How long a search takes, and what its parts cost: one timed order, one list schedule, the exact
// solver on a small pipeline. One core; peers have no search to compare with.
#include <benchmark/benchmark.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/search.hpp"

namespace {

using namespace millrace;

Cost unequal(const Shape& shape) {
  Cost cost = Cost::of_full_stage(shape, 18.522, 18.086, 9.337, 0.601);
  cost.forward.back() *= 1.3;
  cost.backward_input.back() *= 1.3;
  return cost;
}

/// search, p=16, m=64, default budget: arguments are the chunks (0: all) and the limit in tenths
/// of p. Stages are unequal, so that no bound ends the search early.
void BM_Search(benchmark::State& state) {
  SearchOptions options{.ranks = 16, .micro_batches = 64, .cost = unequal};
  if (state.range(0) > 0) options.chunks = static_cast<int>(state.range(0));
  options.memory_limit = 1.6 * static_cast<double>(state.range(1));
  SearchResult result;
  for (auto _ : state) {
    result = search(options);
    benchmark::DoNotOptimize(result);
  }
  state.counters["evaluations"] = static_cast<double>(result.evaluations);
  state.counters["gap"] = result.gap;
}

BENCHMARK(BM_Search)->Args({0, 10})->Args({0, 15})->Args({1, 10})->Args({2, 5})->Unit(
    benchmark::kMillisecond);

void BM_Relist(benchmark::State& state) {
  const Program program = generate("interleaved-zb", {.ranks = 16, .micro_batches = 64});
  const Cost cost = unequal(program.shape);
  for (auto _ : state) benchmark::DoNotOptimize(relist(program, cost, {.rounds = 1}));
}

BENCHMARK(BM_Relist)->Unit(benchmark::kMillisecond);

void BM_LowerBound(benchmark::State& state) {
  const Program program = generate("interleaved-zb", {.ranks = 16, .micro_batches = 64});
  const Cost cost = unequal(program.shape);
  for (auto _ : state)
    benchmark::DoNotOptimize(lower_bound(program.shape, cost, Objective::Makespan, 16));
}

BENCHMARK(BM_LowerBound)->Unit(benchmark::kMillisecond);

/// p and m of a straight pipeline with a limit of 0.75 p.
void BM_Exact(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  Shape shape;
  shape.ranks = ranks;
  shape.micro_batches = static_cast<int>(state.range(1));
  shape.placement = Placement::straight(ranks);
  const Cost cost = unequal(shape);
  ExactResult result;
  for (auto _ : state) {
    result = solve_exact(shape, cost, {.memory_limit = 0.75 * ranks});
    benchmark::DoNotOptimize(result);
  }
  state.counters["proven"] = result.proven ? 1 : 0;
  state.counters["states"] = static_cast<double>(result.states);
}

BENCHMARK(BM_Exact)->Args({3, 4})->Args({4, 3})->Args({4, 6})->Args({4, 8})->Unit(
    benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
