// What does it cost to make, prove and time a large schedule? Every benchmark checks its result
// against the closed form before it is timed.
#include <algorithm>
#include <string>
#include <sys/resource.h>
#include <variant>

#include <benchmark/benchmark.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace {

using namespace millrace;

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double makespan(const Timeline& timeline) {
  double last = 0;
  for (const auto& list : timeline.ranks)
    if (!list.empty()) last = std::max(last, list.back().end);
  return last / timeline.ticks_per_unit;
}

Program make(const std::string& name, const benchmark::State& state) {
  ScheduleOptions options;
  options.ranks = static_cast<int>(state.range(0));
  options.micro_batches = static_cast<int>(state.range(1));
  return generate(name, options);
}

void finish(benchmark::State& state, std::size_t actions) {
  state.counters["actions"] = static_cast<double>(actions);
  state.counters["ns_per_action"] = benchmark::Counter(
      static_cast<double>(actions) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["peak_MiB"] = peak_mebibytes();
}

/// 1F1B: generate, verify the data dependencies, simulate.
void one_f_one_b(benchmark::State& state) {
  std::size_t actions = 0;
  for (auto _ : state) {
    const Program program = make("1f1b", state);
    const Graph graph(program);
    if (!verify(graph).empty()) return state.SkipWithError("verify objects");
    const auto result = simulate(graph, Cost::unit(program.shape));
    const auto* timeline = std::get_if<Timeline>(&result);
    const double closed = 3.0 * static_cast<double>(state.range(0) + state.range(1) - 1);
    if (timeline == nullptr || makespan(*timeline) != closed)
      return state.SkipWithError("the makespan is not (m + p - 1)(F + B)");
    actions = program.size();
  }
  finish(state, actions);
}

/// Interleaved 1F1B with two chunks: generate, insert messages, simulate.
void interleaved(benchmark::State& state) {
  std::size_t actions = 0;
  for (auto _ : state) {
    const Program program = insert_messages(make("interleaved", state));
    const Graph graph(program);
    const auto result = simulate(graph, Cost::unit(program.shape));
    const auto* timeline = std::get_if<Timeline>(&result);
    const auto p = static_cast<double>(state.range(0)), m = static_cast<double>(state.range(1));
    if (timeline == nullptr || makespan(*timeline) != 3 * m + (p - 1) * 3 / 2)
      return state.SkipWithError("the makespan is not m (F + B) + (p - 1)(F + B) / 2");
    actions = program.size();
  }
  finish(state, actions);
}

/// One part alone, of 1F1B.
template <class Part>
void part(benchmark::State& state, Part&& run) {
  const Program program = make("1f1b", state);
  for (auto _ : state) run(program);
  finish(state, program.size());
}

void generate_alone(benchmark::State& state) {
  part(state, [&](const Program&) { benchmark::DoNotOptimize(make("1f1b", state)); });
}

void verify_alone(benchmark::State& state) {
  part(state, [](const Program& program) { benchmark::DoNotOptimize(verify(program)); });
}

void graph_alone(benchmark::State& state) {
  part(state, [](const Program& program) { benchmark::DoNotOptimize(Graph(program)); });
}

void verify_graph_alone(benchmark::State& state) {
  const Program program = make("1f1b", state);
  const Graph graph(program);
  for (auto _ : state) benchmark::DoNotOptimize(verify(graph));
  finish(state, program.size());
}

void simulate_alone(benchmark::State& state) {
  const Program program = make("1f1b", state);
  const Graph graph(program);
  const Cost cost = Cost::unit(program.shape);
  for (auto _ : state) benchmark::DoNotOptimize(simulate(graph, cost));
  finish(state, program.size());
}

BENCHMARK(one_f_one_b)->Args({1024, 8192})->Args({64, 1024})->Unit(benchmark::kMillisecond);
BENCHMARK(interleaved)->Args({64, 1024})->Unit(benchmark::kMillisecond);
BENCHMARK(generate_alone)->Args({256, 4096})->Unit(benchmark::kMillisecond);
BENCHMARK(verify_alone)->Args({256, 4096})->Unit(benchmark::kMillisecond);
BENCHMARK(graph_alone)->Args({256, 4096})->Unit(benchmark::kMillisecond);
BENCHMARK(verify_graph_alone)->Args({256, 4096})->Unit(benchmark::kMillisecond);
BENCHMARK(simulate_alone)->Args({256, 4096})->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
