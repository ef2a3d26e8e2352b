// Many runs of one program: steps in a row, and runs with random times.
#include <algorithm>
#include <cmath>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/simulate/clock.hpp"

namespace millrace {

namespace {

/// A run that must not deadlock.
Timeline completed_run(const Graph& graph, const Cost& cost, const plan::ClockOptions& options) {
  plan::Clock clock(graph, cost, options);
  if (clock.run()) return clock.take();
  const auto stuck = simulate(graph, cost);
  const auto* deadlock = std::get_if<Deadlock>(&stuck);
  throw InvalidArgument("the program deadlocks: " +
                        (deadlock == nullptr ? std::string() : deadlock->message()));
}

/// When each rank has ended its list; a rank without actions ends when it may begin.
std::vector<double> rank_ends(const Timeline& timeline, const std::vector<double>& start) {
  std::vector<double> ends = start;
  for (std::size_t r = 0; r < ends.size(); ++r)
    if (!timeline.ranks[r].empty()) ends[r] = timeline.ranks[r].back().end;
  return ends;
}

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

/// Factors of one jittered run, by node.
std::vector<double> factors(const Graph& graph, const Jitter& jitter, int run_number) {
  std::vector<double> result;
  result.reserve(graph.size());
  const auto& lists = graph.program().ranks;
  for (std::size_t r = 0; r < lists.size(); ++r) {
    RandomKey key;
    key.seed = jitter.seed;
    key.purpose = Purpose::Jitter;
    key.step = static_cast<std::uint64_t>(run_number);
    key.sample = static_cast<std::uint32_t>(r);
    for (std::size_t i = 0; i < lists[r].size(); ++i) {
      const double u = random_uniform(key, static_cast<std::uint32_t>(i));
      result.push_back(1 + jitter.amount * (2 * u - 1));
    }
  }
  return result;
}

}  // namespace

Iterations simulate_iterations(const Graph& graph, const Cost& cost, int steps, Barrier barrier) {
  require(steps >= 1, "steps is " + std::to_string(steps) + "; at least 1 is simulated");
  cost.require_fits(graph.program().shape);
  require(barrier == Barrier::Yes || !cost.shares_cores(graph.program().shape.ranks),
          "steps that overlap are simulated with a processor per rank; Cost::cores is " +
              std::to_string(cost.cores) + ", allowed are 0 or Barrier::Yes");
  std::vector<double> start(graph.program().ranks.size(), 0);
  Iterations result;
  for (int step = 0; step < steps; ++step) {
    start = rank_ends(completed_run(graph, cost, {.start = start}), start);
    const double end = largest(start);
    if (barrier == Barrier::Yes) std::fill(start.begin(), start.end(), end);
    result.per_step = end / cost.ticks_per_unit - (step == 0 ? 0 : result.ends.back());
    result.ends.push_back(end / cost.ticks_per_unit);
  }
  return result;
}

Spread simulate_jitter(const Graph& graph, const Cost& cost, const Jitter& jitter) {
  require(jitter.runs >= 1, "runs is " + std::to_string(jitter.runs) + "; at least 1 is simulated");
  require(jitter.amount >= 0 && jitter.amount <= 1,
          "amount is " + std::to_string(jitter.amount) + "; it lies between 0 and 1");
  cost.require_fits(graph.program().shape);
  const std::vector<double> zero(graph.program().ranks.size(), 0);
  std::vector<double> makespans;
  double sum = 0;
  for (int number = 0; number < jitter.runs; ++number) {
    const auto factor = factors(graph, jitter, number);
    const double ticks =
        largest(rank_ends(completed_run(graph, cost, {.start = zero, .factor = factor}), zero));
    makespans.push_back(ticks / cost.ticks_per_unit);
    sum += makespans.back();
  }
  std::sort(makespans.begin(), makespans.end());
  const auto percentile = [&](double share) {
    const double place = std::ceil(share * static_cast<double>(makespans.size()));
    return makespans[static_cast<std::size_t>(std::max(1.0, place)) - 1];
  };
  return {sum / static_cast<double>(makespans.size()),
          makespans.front(),
          percentile(0.05),
          percentile(0.5),
          percentile(0.95),
          percentile(0.99),
          makespans.back()};
}

}  // namespace millrace
