// The public simulation: one run of the clock, or the cycle that stops it.
#include "millrace/scheduler/plan/simulate.hpp"

#include <vector>

#include "millrace/core/error.hpp"
#include "plan/model/validate.hpp"
#include "plan/simulate/clock.hpp"
#include "plan/verify/cycle.hpp"

namespace millrace {

namespace {

std::variant<Timeline, Deadlock> run(const Graph& graph,
                                     const Cost& cost,
                                     const plan::ClockOptions& options) {
  plan::Clock clock(graph, cost, options);
  if (clock.run()) return clock.take();
  const plan::Waits waits{&graph, {}, &cost.pair};
  return plan::deadlock(graph, plan::shortest_cycle(waits, clock.next()));
}

}  // namespace

std::variant<Timeline, Deadlock> simulate(const Graph& graph, const Cost& cost) {
  cost.require_fits(graph.program().shape);
  return run(graph, cost, {});
}

std::variant<Timeline, Deadlock> simulate_as_measured(const Graph& graph,
                                                      const Cost& cost,
                                                      const Timeline& measured) {
  cost.require_fits(graph.program().shape);
  plan::require_aligned(graph.program(), measured);
  const double scale = cost.ticks_per_unit / measured.ticks_per_unit;
  std::vector<double> ticks;
  ticks.reserve(graph.size());
  for (std::size_t r = 0; r < measured.ranks.size(); ++r)
    for (std::size_t i = 0; i < measured.ranks[r].size(); ++i) {
      const Op op = graph.program().ranks[r][i].op;
      const Interval& interval = measured.ranks[r][i];
      require(interval.end >= interval.start, "an interval of the timeline ends before it begins");
      const bool lasts = is_compute(op) || op == Op::OptimizerStep;
      ticks.push_back(lasts ? (interval.end - interval.start) * scale : 0);
    }
  plan::ClockOptions options;
  options.ticks = ticks;
  return run(graph, cost, options);
}

}  // namespace millrace
