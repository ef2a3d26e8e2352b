// The critical path: from the action that ends last, back along whatever released each action last.
#include <algorithm>

#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/lookup.hpp"

namespace millrace {

namespace {

/// Walks a timeline backwards.
class Walk {
 public:
  Walk(const Graph& graph, const Cost& cost, const Timeline& timeline)
      : graph_(graph), cost_(cost), timeline_(timeline) {}

  std::vector<Node> path() {
    std::vector<Node> result;
    for (Node node = last(); node != plan::kNoNode; node = releaser(node)) result.push_back(node);
    std::reverse(result.begin(), result.end());
    return result;
  }

 private:
  [[nodiscard]] const Interval& interval(Node node) const {
    const Rank rank = graph_.rank(node);
    return timeline_.ranks[rank.index()][node - graph_.first(rank)];
  }

  [[nodiscard]] Node last() const {
    Node best = plan::kNoNode;
    double end = 0;
    for (std::size_t r = 0; r < timeline_.ranks.size(); ++r) {
      if (timeline_.ranks[r].empty()) continue;
      const Node node = graph_.first(Rank{static_cast<std::int32_t>(r) + 1}) - 1;
      if (best != plan::kNoNode && timeline_.ranks[r].back().end <= end) continue;
      best = node;
      end = timeline_.ranks[r].back().end;
    }
    return best;
  }

  /// Whether two neighbours on a rank ran as one atomic pair.
  [[nodiscard]] bool as_one(Node first) const {
    return graph_.action(first).with_next && interval(first) == interval(first + 1);
  }

  /// What released the action: its predecessor on the rank or the producer whose message came last.
  [[nodiscard]] Node releaser(Node node) const {
    const Rank rank = graph_.rank(node);
    const Node first = graph_.first(rank);
    const Node head = node > first && as_one(node - 1) ? node - 1 : node;
    const Node tail = graph_.action(head).with_next && as_one(head) ? head + 1 : head;
    Node best = plan::kNoNode;
    double release = 0;
    if (head > first) {
      best = head - 1;
      release = interval(best).end;
    }
    for (Node each = head; each <= tail; ++each)
      for (const Node producer : graph_.producers(each)) {
        const double arrival = interval(producer).end + message(producer, rank);
        if (best != plan::kNoNode && arrival <= release) continue;
        best = producer;
        release = arrival;
      }
    return best;
  }

  /// Time a message from the producer to `rank` takes when the link is free, in timeline ticks.
  [[nodiscard]] double message(Node producer, Rank rank) const {
    const Rank source = graph_.rank(producer);
    const int ranks = graph_.program().shape.ranks;
    const double scale = timeline_.ticks_per_unit / cost_.ticks_per_unit;
    return (cost_.delay(source, rank, ranks) + cost_.transfer(source, rank, ranks)) * scale;
  }

  const Graph& graph_;
  const Cost& cost_;
  const Timeline& timeline_;
};

}  // namespace

std::vector<Node> critical_path(const Graph& graph, const Cost& cost, const Timeline& timeline) {
  return Walk(graph, cost, timeline).path();
}

}  // namespace millrace
