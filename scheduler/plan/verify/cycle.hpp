// Cycle: the shortest chain of actions that wait for each other. A deadlock is reported as this
// chain, not as a dump of where every rank stands.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/model/lookup.hpp"

namespace millrace::plan {

/// The edges into nodes: the graph's, and those that a transport or atomic pairs add.
struct Waits {
  const Graph* graph;
  /// By node: the node whose end makes room for this send, or kNoNode. Empty means none anywhere.
  std::vector<Node> credit;
  /// The first half of an overlapped pair with a time of its own also waits for what the second
  /// needs. Null: none has one.
  const PairTimes* pairs = nullptr;

  /// Calls `use(producer)` for every node that `node` waits for outside program order.
  template <class Use>
  void for_each(Node node, Use&& use) const {
    for (const Node producer : graph->producers(node)) use(producer);
    if (!credit.empty() && credit[node] != kNoNode) use(credit[node]);
    if (pairs == nullptr || !graph->action(node).with_next) return;
    const Rank rank = graph->rank(node);
    if (node + 1 == graph->first(Rank{rank.value + 1})) return;  // no pair: its list ends with it
    if (pairs->of(graph->action(node).op, graph->action(node + 1).op) < 0) return;
    for (const Node producer : graph->producers(node + 1))
      if (producer != node) use(producer);
  }
};

/// Where every rank stands after running as far as it can, one entry per rank. Cost: O(actions).
[[nodiscard]] std::vector<Node> where_ranks_stand(const Waits& waits);

/// Whether every list ends.
[[nodiscard]] bool finished(const Graph& graph, const std::vector<Node>& next);

/// A waiting node and what it waits for.
struct Wait {
  Node node;
  Node producer;
};

/// A shortest cycle among the actions that were not executed, counted in waits (steps along a list
/// are free). `next` says where the ranks stand. Empty when every rank finished. The search looks
/// at 2^26 edges at most and then returns the shortest cycle seen; programs that deadlock between
/// neighbours never get near that.
[[nodiscard]] std::vector<Wait> shortest_cycle(const Waits& waits, const std::vector<Node>& next);

/// The cycle as the public value.
[[nodiscard]] Deadlock deadlock(const Graph& graph, const std::vector<Wait>& cycle);

}  // namespace millrace::plan
