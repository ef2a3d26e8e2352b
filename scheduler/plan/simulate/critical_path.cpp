// The critical path: from the action that ends last, back along whatever released each action last.
// With contention a message may have stood behind others of its link; then the first of that queue
// is what released.
#include <algorithm>
#include <limits>

#include "millrace/core/error.hpp"
#include "plan/model/validate.hpp"
#include "plan/simulate/walk.hpp"

namespace millrace {

namespace plan {

Walk::Walk(const Graph& graph, const Cost& cost, const Timeline& timeline)
    : graph_(graph), cost_(cost), timeline_(timeline), places_(graph), sums_(graph, cost) {
  if (cost.contention) queue_all();
  queue_sums();
  if (cost.shares_cores(graph.program().shape.ranks)) note_ends();
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
  for (Node before = head; before > first && best == kNoNode; --before) {
    if (is_receive(graph_.action(before - 1).op)) continue;  // it held nobody up
    best = before - 1;
    release = interval(best).end;
  }
  for (Node each = head; each <= tail; ++each)
    for (const Node producer : graph_.producers(each)) {
      const bool own = graph_.rank(producer) == rank;  // a receive
      const bool travels = has_unit(graph_.action(each).op) && !own;
      const double way = own ? 0 : message(producer, each, travels);
      const Queued* const queue = travels ? queued(producer, each) : nullptr;
      const double arrival = queue != nullptr ? queue->arrival : interval(producer).end + way;
      if (best != kNoNode && arrival <= release) continue;
      best = queue != nullptr ? queue->head : producer;
      release = arrival;
    }
  if (graph_.action(node).op == Op::ReduceGrad) best = last_sum(node, release, best);
  const Node freed = freed_for(head, release);
  return freed != kNoNode ? freed : best;
}

/// Where the sum began that a REDUCE_GRAD waited for after `release`, or what its rank ran before
/// it gave the sum; else `otherwise`.
Node Walk::last_sum(Node reduction, double release, Node otherwise) const {
  const auto end_of = [this](Node node) { return interval(node).end; };
  Node best = otherwise;
  for (const AwaitedSum& awaited : sums_.awaited_by(graph_.action(reduction))) {
    const PlannedSum& sum = sums_.all()[awaited.sum];
    const Queued& queue = sum_queues_[awaited.sum];
    const Rank rank = graph_.rank(reduction);
    const double arrival = sums_.arrival(awaited, rank, queue.arrival, scale(), end_of);
    if (best != kNoNode && arrival <= release) continue;
    best = sum.rank != rank && end_of(sum.before) > queue.arrival ? sum.before : queue.head;
    release = arrival;
  }
  return best;
}

/// The sums of a rank follow one another, as in the simulation.
void Walk::queue_sums() {
  if (sums_.none()) return;
  std::vector<SumLink> links(timeline_.ranks.size());
  std::vector<Node> first(links.size(), kNoNode);
  for (const PlannedSum& sum : sums_.all()) {
    const std::size_t r = sum.rank.index();
    const double ready = interval(sum.last).end;
    const Interval time = links[r].take(ready, sum.transfer * scale(), sum.delay * scale());
    if (time.start <= ready) first[r] = sum.last;
    sum_queues_.push_back({time.end, first[r]});
  }
}

void Walk::note_ends() {
  for (Node node = 0; node < graph_.size(); ++node) {
    const Op op = graph_.action(node).op;
    if (is_compute(op) || op == Op::OptimizerStep) ends_.emplace_back(interval(node).end, node);
  }
  std::sort(ends_.begin(), ends_.end());
}

/// The pass that ended last of those that began before `node` and ended by then, if that was after
/// everything else had released it: then it stood for a processor.
Node Walk::freed_for(Node node, double release) const {
  const Op op = graph_.action(node).op;
  if (ends_.empty() || !(is_compute(op) || op == Op::OptimizerStep)) return kNoNode;
  const double start = interval(node).start;
  auto at = std::upper_bound(ends_.begin(), ends_.end(), std::pair(start, kNoNode));
  while (at != ends_.begin() && interval((at - 1)->second).start >= start) --at;
  if (at == ends_.begin() || (at - 1)->first <= release) return kNoNode;
  return (at - 1)->second;
}

/// What is known of the message that the consumer waits for; nothing without contention.
const Walk::Queued* Walk::queued(Node producer, Node consumer) const {
  if (queues_.empty()) return nullptr;
  return &queues_[places_.at(producer, graph_.action(producer), graph_.action(consumer).stage)];
}

/// Time from the producer's end to the consumer's rank when the link is free, in timeline ticks;
/// what carries no data has the delay alone.
double Walk::message(Node producer, Node consumer, bool carries) const {
  const Rank source = graph_.rank(producer), rank = graph_.rank(consumer);
  const Stage feeding = std::min(graph_.action(producer).stage, graph_.action(consumer).stage);
  const int ranks = graph_.program().shape.ranks;
  const double transfer = carries ? cost_.transfer(source, rank, ranks, feeding) : 0;
  return (cost_.delay(source, rank, ranks) + transfer) * scale();
}

/// The messages of a link leave in the order of their rank's list, as in the simulation.
void Walk::queue_all() {
  queues_.resize(places_.size());
  for (int r = 0; r < graph_.program().shape.ranks; ++r) queue_from(Rank{r});
}

void Walk::queue_from(Rank source) {
  const Shape& shape = graph_.program().shape;
  const auto count = static_cast<std::size_t>(shape.ranks);
  std::vector<double> free(count, -std::numeric_limits<double>::infinity());
  std::vector<Node> first(count, kNoNode);
  const Node end = graph_.first(Rank{source.value + 1});
  for (Node node = graph_.first(source); node < end; ++node) {
    const Action& action = graph_.action(node);
    for_each_message(graph_, action, [&](const StageLink& way, Stage receiver) {
      const Rank to = shape.rank(action.replica(), receiver);
      if (to == source) return;
      const double ready = interval(node).end;
      double& link = free[to.index()];
      if (link <= ready) first[to.index()] = node;
      link = std::max(link, ready) + cost_.transfer(source, to, shape.ranks, way.from) * scale();
      queues_[places_.at(node, action, receiver)] = {
          link + cost_.delay(source, to, shape.ranks) * scale(), first[to.index()]};
    });
  }
}

}  // namespace plan

std::vector<Node> critical_path(const Graph& graph, const Cost& cost, const Timeline& timeline) {
  cost.require_fits(graph.program().shape);
  plan::require_aligned(graph.program(), timeline);
  return plan::Walk(graph, cost, timeline).path();
}

}  // namespace millrace
