// Simulates the reduced program.
#include "plan/search/replica_figures.hpp"

#include <variant>

#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::plan {

Figures with_replicas(Figures figures, const Program& program, const Cost& cost) {
  if (!figures.feasible) return figures;
  const Program whole = insert_reductions(program, cost.data_parallel);
  const Graph graph(whole);
  const Report timed = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
  figures.makespan = timed.makespan * cost.ticks_per_unit;
  figures.step = timed.step * cost.ticks_per_unit - cost.after_passes;
  figures.span = timed.span * cost.ticks_per_unit;
  return figures;
}

}  // namespace millrace::plan
