// Breadth-first search for the shortest cycle of waits. To reach position x of a rank means to
// reach everything before x on it, so the state of the search is one position per rank.
#include "plan/verify/cycle.hpp"

#include <algorithm>

#include "plan/model/replay.hpp"

namespace millrace::plan {

std::vector<Node> where_ranks_stand(const Waits& waits) {
  Replay replay(waits.graph->first());
  std::vector<std::uint8_t> done(waits.graph->size(), 0);
  if (waits.credit.empty() && waits.pairs == nullptr) {
    replay.run([&](Rank, Node node) {
      for (const Node producer : waits.graph->producers(node))
        if (done[producer] == 0) return producer;
      done[node] = 1;
      return kNoNode;
    });
    return replay.next();
  }
  replay.run([&](Rank, Node node) {
    Node wanted = kNoNode;
    waits.for_each(node, [&](Node producer) {
      if (wanted == kNoNode && done[producer] == 0) wanted = producer;
    });
    if (wanted == kNoNode) done[node] = 1;
    return wanted;
  });
  return replay.next();
}

bool finished(const Graph& graph, const std::vector<Node>& next) {
  for (std::size_t r = 0; r < next.size(); ++r)
    if (next[r] != graph.first(Rank{static_cast<std::int32_t>(r) + 1})) return false;
  return true;
}

namespace {

constexpr std::size_t kLongest = static_cast<std::size_t>(-1);
constexpr std::size_t kEdgeBudget = std::size_t{1} << 26U;

/// The search from one start; reused for all starts so that nothing is allocated per start.
class CycleSearch {
 public:
  CycleSearch(const Waits& waits, const std::vector<Node>& next)
      : waits_(waits), graph_(*waits.graph), next_(next), scanned_(next) {}

  std::vector<Wait> shortest() {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      const Node end = graph_.first(Rank{static_cast<std::int32_t>(r) + 1});
      for (Node node = next_[r]; node < end && edges_ < kEdgeBudget; ++node) {
        if (best_.size() == 1 || (best_.size() == 2 && !has_self_wait_left(r, node))) continue;
        search_from(node, r);
      }
    }
    return best_;
  }

 private:
  /// A step of the search: `node` waits for `producer`; the step before it reached node's rank.
  struct Step {
    Wait wait;
    std::size_t rank;    // of the producer
    std::size_t before;  // index of the step before, or kLongest
    std::size_t depth;   // waits so far
  };

  /// A wait inside one list is a cycle of one, the only thing shorter than two.
  bool has_self_wait_left(std::size_t rank, Node node) {
    bool found = false;
    waits_.for_each(node, [&](Node producer) {
      found = found || (producer >= node && graph_.rank(producer).index() == rank);
    });
    return found;
  }

  void search_from(Node start, std::size_t rank) {
    steps_.clear();
    extend(start, kLongest, 1);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const Step step = steps_[i];
      if (step.rank == rank && step.wait.producer >= start) {
        keep(i);
        break;
      }
      const std::size_t limit = best_.empty() ? kLongest : best_.size();
      if (step.depth + 1 >= limit) continue;
      for (Node& node = scanned_[step.rank]; node <= step.wait.producer; ++node)
        extend(node, i, step.depth + 1);
    }
    for (const Step& step : steps_) scanned_[step.rank] = next_[step.rank];
  }

  void extend(Node node, std::size_t before, std::size_t depth) {
    waits_.for_each(node, [&](Node producer) {
      ++edges_;
      const std::size_t rank = graph_.rank(producer).index();
      if (producer >= scanned_[rank]) steps_.push_back({{node, producer}, rank, before, depth});
    });
  }

  void keep(std::size_t last) {
    std::vector<Wait> cycle;
    for (std::size_t i = last; i != kLongest; i = steps_[i].before) cycle.push_back(steps_[i].wait);
    std::reverse(cycle.begin(), cycle.end());
    if (best_.empty() || cycle.size() < best_.size()) best_ = cycle;
  }

  const Waits& waits_;
  const Graph& graph_;
  const std::vector<Node>& next_;
  std::vector<Node> scanned_;  // by rank: first node not yet looked at from this start
  std::vector<Step> steps_;
  std::vector<Wait> best_;
  std::size_t edges_ = 0;
};

}  // namespace

std::vector<Wait> shortest_cycle(const Waits& waits, const std::vector<Node>& next) {
  return CycleSearch(waits, next).shortest();
}

Deadlock deadlock(const Graph& graph, const std::vector<Wait>& cycle) {
  Deadlock result;
  for (const Wait& wait : cycle)
    result.cycle.push_back({graph.rank(wait.node),
                            graph.position(wait.node),
                            graph.action(wait.node),
                            graph.rank(wait.producer),
                            graph.action(wait.producer)});
  return result;
}

}  // namespace millrace::plan

namespace millrace {

std::string Deadlock::message() const {
  std::string text;
  for (const Wait& wait : cycle) {
    text += text.empty() ? "rank " : "; rank ";
    text += std::to_string(wait.rank.value) + " waits in " + to_string(wait.action) + " for ";
    const std::string other = "rank " + std::to_string(wait.needs_rank.value);
    const std::string needs = to_string(wait.needs);
    if (wait.needs_rank == wait.rank)
      text += needs + ", which comes later in its own list";
    else if (is_send(wait.action.op))
      text += other + " to get past " + needs;
    else
      text += needs + " of " + other;
  }
  return text;
}

}  // namespace millrace
