// The critical path: from the action that ends last, back along whatever released each action last.
// With contention a message may have stood behind others of its link; then the first of that queue
// is what released.
#include <algorithm>
#include <limits>

#include "millrace/core/error.hpp"
#include "plan/sound.hpp"
#include "plan/walk.hpp"

namespace millrace {

namespace plan {

Walk::Walk(const Graph& graph, const Cost& cost, const Timeline& timeline)
    : graph_(graph), cost_(cost), timeline_(timeline) {
  if (cost.contention) queue_all();
}

std::vector<Node> Walk::path() const {
  std::vector<Node> result;
  for (Node node = last(); node != kNoNode; node = releaser(node)) {
    require(result.size() < graph_.size(), "the order of the program has a cycle");
    result.push_back(node);
  }
  std::reverse(result.begin(), result.end());
  return result;
}

Node Walk::last() const {
  Node best = kNoNode;
  double end = 0;
  for (std::size_t r = 0; r < timeline_.ranks.size(); ++r) {
    if (timeline_.ranks[r].empty()) continue;
    const Node node = graph_.first(Rank{static_cast<std::int32_t>(r) + 1}) - 1;
    if (best != kNoNode && timeline_.ranks[r].back().end <= end) continue;
    best = node;
    end = timeline_.ranks[r].back().end;
  }
  return best;
}

/// Whether two neighbours on a rank ran as one atomic pair.
bool Walk::as_one(Node first) const {
  const bool pair = graph_.action(first).with_next && first + 1 < graph_.size() &&
                    graph_.rank(first) == graph_.rank(first + 1);
  return pair && interval(first) == interval(first + 1);
}

Node Walk::releaser(Node node) const {
  const Rank rank = graph_.rank(node);
  const Node first = graph_.first(rank);
  const Node head = node > first && as_one(node - 1) ? node - 1 : node;
  const Node tail = as_one(head) ? head + 1 : head;
  Node best = kNoNode;
  double release = 0;
  bool queued = false;
  for (Node before = head; before > first && best == kNoNode; --before) {
    if (is_receive(graph_.action(before - 1).op)) continue;  // it held nobody up
    best = before - 1;
    release = interval(best).end;
  }
  for (Node each = head; each <= tail; ++each)
    for (const Node producer : graph_.producers(each)) {
      const bool own = graph_.rank(producer) == rank;  // a receive
      const bool travels = has_unit(graph_.action(each).op) && !own;
      const double way = own ? 0 : message(producer, rank, travels);
      const double arrival =
          travels && !queues_.empty() ? queues_[producer].arrival : interval(producer).end + way;
      if (best != kNoNode && arrival <= release) continue;
      best = producer;
      release = arrival;
      queued = travels && !queues_.empty();
    }
  return queued ? queues_[best].head : best;
}

/// Time from the producer's end to `rank` when the link is free, in timeline ticks; what carries
/// no data has the delay alone.
double Walk::message(Node producer, Rank rank, bool carries) const {
  const Rank source = graph_.rank(producer);
  const int ranks = graph_.program().shape.ranks;
  const double transfer = carries ? cost_.transfer(source, rank, ranks) : 0;
  return (cost_.delay(source, rank, ranks) + transfer) * scale();
}

/// The rank that an action's message goes to; none for an action without message.
std::optional<Rank> Walk::destination(const Action& action) const {
  const bool sends = graph_.has_messages()
                         ? is_send(action.op)
                         : action.op == Op::Forward || gives_input_gradient(action.op);
  if (!sends) return std::nullopt;
  const Shape& shape = graph_.program().shape;
  const bool forward = action.op == Op::Forward || action.op == Op::SendForward;
  const int stage = action.stage.value + (forward ? 1 : -1);
  if (stage < 0 || stage >= shape.stages()) return std::nullopt;
  return shape.rank(action.replica(), Stage{stage});
}

/// The messages of a link leave in the order of their rank's list, as in the simulation.
void Walk::queue_all() {
  queues_.resize(graph_.size());
  const int ranks = graph_.program().shape.ranks;
  const auto count = static_cast<std::size_t>(ranks);
  for (int r = 0; r < ranks; ++r) {
    const Rank source{r};
    std::vector<double> free(count, -std::numeric_limits<double>::infinity());
    std::vector<Node> head(count, kNoNode);
    for (Node node = graph_.first(source); node < graph_.first(Rank{r + 1}); ++node) {
      const auto to = destination(graph_.action(node));
      if (!to || *to == source) continue;
      const double end = interval(node).end;
      double& link = free[to->index()];
      if (link <= end) head[to->index()] = node;
      link = std::max(link, end) + cost_.transfer(source, *to, ranks) * scale();
      queues_[node] = {link + cost_.delay(source, *to, ranks) * scale(), head[to->index()]};
    }
  }
}

}  // namespace plan

std::vector<Node> critical_path(const Graph& graph, const Cost& cost, const Timeline& timeline) {
  cost.require_fits(graph.program().shape);
  plan::require_aligned(graph.program(), timeline);
  return plan::Walk(graph, cost, timeline).path();
}

}  // namespace millrace
