// The public simulation: one run of the clock, or the cycle that stops it.
#include "millrace/scheduler/plan/simulate.hpp"

#include "plan/simulate/clock.hpp"
#include "plan/verify/cycle.hpp"

namespace millrace {

std::variant<Timeline, Deadlock> simulate(const Graph& graph, const Cost& cost) {
  cost.require_fits(graph.program().shape);
  plan::Clock clock(graph, cost);
  if (clock.run()) return clock.take();
  const plan::Waits waits{&graph, {}, cost.pair.has_value()};
  return plan::deadlock(graph, plan::shortest_cycle(waits, clock.next()));
}

}  // namespace millrace
