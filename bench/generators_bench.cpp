// How long generating an order takes, for the schedules that are searched and for the plain ones.
#include <benchmark/benchmark.h>

#include "millrace/scheduler/plan/generators.hpp"

namespace {

void generates(benchmark::State& state, const char* name) {
  millrace::ScheduleOptions options;
  options.ranks = static_cast<int>(state.range(0));
  options.micro_batches = static_cast<int>(state.range(1));
  const std::size_t actions = millrace::generate(name, options).size();
  for (auto _ : state) benchmark::DoNotOptimize(millrace::generate(name, options));
  state.counters["actions"] = static_cast<double>(actions);
}

BENCHMARK_CAPTURE(generates, zb_auto, "zb-auto")
    ->Args({64, 1024})
    ->Args({256, 1024})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generates, v_half, "v-half")->Args({32, 256})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generates, v_zb, "v-zb")
    ->Args({8, 24})
    ->Args({64, 512})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generates, interleaved, "interleaved")
    ->Args({64, 1024})
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
