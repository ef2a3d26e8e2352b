// The code of include/millrace/README.md about schedules: generate, verify, simulate, draw, search,
// save and load.
#include <iostream>
#include <millrace/scheduler/plan.hpp>
#include <string>
#include <variant>

using namespace millrace;

namespace {

double simulated(const Program& program) {
  const Graph graph(program);
  const Cost cost = Cost::unit(program.shape);
  const auto timeline = std::get<Timeline>(simulate(graph, cost));
  std::cout << draw_ascii(program, timeline);
  return report(graph, cost, timeline).makespan;
}

double searched() {
  const SearchResult result = search({.ranks = 4, .micro_batches = 8, .memory_limit = 3});
  if (!result.best) return 0;
  return result.best->makespan;
}

Program loaded(const std::string& text) {
  const ParsedPlan parsed = read_plan(text);
  if (!parsed.plan) throw Error(to_string(parsed.diagnostics.front()));
  return parsed.plan->program;
}

}  // namespace

int main() {
  const Program program = generate("zb-h1", {.ranks = 4, .micro_batches = 8});
  if (!verify(program, Transport::bounded(1)).empty()) return 1;
  const double makespan = simulated(program), best = searched();
  std::cout << "makespan " << makespan << "; best with 3 micro-batches in memory: " << best << '\n';
  const std::string text = write_plan({.program = program, .boundaries = {}});
  std::cout << (loaded(text) == program ? "loaded" : "different") << '\n';
}
