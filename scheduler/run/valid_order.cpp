// Topological order and longest remaining path.
#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "run/executors.hpp"

namespace millrace::run {

std::vector<Node> valid_order(const Graph& graph) {
  const Program& program = graph.program();
  std::vector<Node> order;
  order.reserve(graph.size());
  std::vector<std::size_t> next(program.ranks.size(), 0);
  std::vector<bool> done(graph.size(), false);
  const auto ready = [&](Node node) {
    const auto producers = graph.producers(node);
    return std::all_of(
        producers.begin(), producers.end(), [&](Node producer) { return done[producer]; });
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t i = 0; i < program.ranks.size(); ++i) {
      const Node first = graph.first(Rank{static_cast<int>(i)});
      for (; next[i] < program.ranks[i].size(); ++next[i]) {
        const Node node = first + static_cast<Node>(next[i]);
        if (!ready(node)) break;
        done[node] = true;
        order.push_back(node);
        progress = true;
      }
    }
  }
  for (std::size_t i = 0; i < program.ranks.size(); ++i)
    if (next[i] < program.ranks[i].size())
      throw InvalidArgument("the program cannot finish: rank " + std::to_string(i) +
                            " waits for ever before the " + describe(program.ranks[i][next[i]]));
  return order;
}

std::vector<std::uint32_t> remaining_path(const Graph& graph) {
  std::vector<std::uint32_t> remaining(graph.size(), 1);
  const std::vector<Node> order = valid_order(graph);
  for (auto node = order.rbegin(); node != order.rend(); ++node) {
    const auto before = [&](Node earlier) {
      remaining[earlier] = std::max(remaining[earlier], remaining[*node] + 1);
    };
    if (*node != graph.first(graph.rank(*node))) before(*node - 1);
    for (const Node producer : graph.producers(*node)) before(producer);
  }
  return remaining;
}

}  // namespace millrace::run
