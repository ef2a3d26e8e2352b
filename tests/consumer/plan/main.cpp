// A framework builder's first minute: generate, verify, lower and simulate with the plan room
// alone.
#include <iostream>
#include <millrace/scheduler/plan.hpp>
#include <variant>

int main() {
  using namespace millrace;
  const Program compute = generate("zb-h1", {.ranks = 4, .micro_batches = 8});
  const Program lowered = insert_messages(compute);
  const bool valid = verify(lowered, Transport::rendezvous()).empty();
  const Graph graph(compute);
  const Cost cost = Cost::unit(compute.shape);
  const auto timeline = std::get<Timeline>(simulate(graph, cost));
  const double makespan = report(graph, cost, timeline).makespan;
  std::cout << "zb-h1 valid=" << valid << " makespan=" << makespan << '\n';
  return valid && makespan == 27 ? 0 : 1;
}
