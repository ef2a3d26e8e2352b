// What does a subcommand of plans cost, against the library calls that it makes? Both run as
// processes of their own, so that the system measures each; the parent stays small,
// because a child starts with its parent's memory.
#include <fcntl.h>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <variant>

#include <benchmark/benchmark.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace {

using namespace millrace;

struct Spent {
  bool right = false;  ///< it exited with 0
  double seconds = 0;  ///< of the processor, outside the system
  double mebibytes = 0;
};

/// What a process spends that does `work` and exits with what it returns.
template <class Work>
Spent spent_by(Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  rusage usage{};
  if (child < 0 || ::wait4(child, &status, 0, &usage) != child) return {};
  return {WIFEXITED(status) && WEXITSTATUS(status) == 0,
          static_cast<double>(usage.ru_utime.tv_sec) +
              1e-6 * static_cast<double>(usage.ru_utime.tv_usec),
          static_cast<double>(usage.ru_maxrss) / 1024};
}

/// Generate, graph, verify, simulate, report. Returns the exit code.
int library_calls(int ranks, int micro_batches) {
  ScheduleOptions options;
  options.ranks = ranks;
  options.micro_batches = micro_batches;
  const Program program = generate("1f1b", options);
  const Graph graph(program);
  const Cost cost = Cost::unit(program.shape);
  const auto result = simulate(graph, cost);
  const auto* timeline = std::get_if<Timeline>(&result);
  if (!verify(graph).empty() || timeline == nullptr) return 1;
  const double closed = 3.0 * (ranks + micro_batches - 1);
  return report(graph, cost, *timeline).makespan == closed ? 0 : 1;
}

/// Executes `millrace SUBCOMMAND 1f1b -p RANKS -m MICRO_BATCHES` and discards its output.
int become(const char* subcommand, int ranks, int micro_batches) {
  const std::string p = std::to_string(ranks), m = std::to_string(micro_batches);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ::dup2(nowhere, STDOUT_FILENO);
  ::dup2(nowhere, STDERR_FILENO);
  constexpr const char* kMillrace = MILLRACE_BINARY_DIR "/millrace";
  ::execl(kMillrace, kMillrace, subcommand, "1f1b", "-p", p.c_str(), "-m", m.c_str(), nullptr);
  return 127;
}

/// The time is the subcommand's; `by_library` is its ratio to the calls' of the same iteration.
void one_f_one_b(benchmark::State& state, const char* subcommand) {
  const int ranks = static_cast<int>(state.range(0));
  const int micro_batches = static_cast<int>(state.range(1));
  Spent library, whole;
  double library_seconds = 0, seconds = 0;
  for (auto _ : state) {
    library = spent_by([&] { return library_calls(ranks, micro_batches); });
    whole = spent_by([&] { return become(subcommand, ranks, micro_batches); });
    if (!library.right || !whole.right)
      return state.SkipWithError("the subcommand or the library calls failed");
    library_seconds += library.seconds;
    seconds += whole.seconds;
    state.SetIterationTime(whole.seconds);
  }
  state.counters["library_s"] =
      benchmark::Counter(library_seconds, benchmark::Counter::kAvgIterations);
  state.counters["by_library"] = seconds / library_seconds;
  state.counters["library_MiB"] = library.mebibytes;
  state.counters["peak_MiB"] = whole.mebibytes;
}

BENCHMARK_CAPTURE(one_f_one_b, verify, "verify")
    ->Args({1024, 8192})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(one_f_one_b, simulate, "simulate")
    ->Args({1024, 8192})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
