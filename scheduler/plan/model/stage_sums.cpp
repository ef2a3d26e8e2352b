// Finds the last B or W and the REDUCE_GRAD of every stage, and times the sums of a timeline.
#include "plan/model/stage_sums.hpp"

#include <optional>

#include "plan/model/lookup.hpp"
#include "plan/model/validate.hpp"

namespace millrace {

namespace plan {

namespace {

/// What a rank runs before a REDUCE_GRAD that is none of the same group.
Node before_group(const Graph& graph, const std::vector<std::vector<Copy>>& groups, Node node) {
  const auto group_of = [&](Node each) {
    return groups[graph.action(each).stage.index()].front().stage;
  };
  const Node first = graph.first(graph.rank(node));
  Node before = node;
  while (before > first) {
    --before;
    if (graph.action(before).op != Op::ReduceGrad || group_of(before) != group_of(node)) break;
  }
  return before;
}

/// Whether a rank has a replica of the stage, all of whose gradients it then needs.
bool holds(const Shape& shape, Rank rank, Stage stage) {
  for (int replica = 0; replica < shape.replicas(); ++replica)
    if (shape.rank(Replica{replica}, stage) == rank) return true;
  return false;
}

}  // namespace

PlannedSums::PlannedSums(const Graph& graph, const Cost& cost) {
  if (!graph.has_joint_actions() || !cost.adds_gradients(graph.program().shape)) return;
  stages_ = static_cast<std::size_t>(graph.program().shape.stages());
  find(graph, cost);
  join(graph, cost);
}

void PlannedSums::find(const Graph& graph, const Cost& cost) {
  const Shape& shape = graph.program().shape;
  const std::size_t copies = stages_ * static_cast<std::size_t>(shape.replicas());
  std::vector<Node> last(copies, kNoNode), reduction(copies, kNoNode);
  Node node = 0;
  for (const auto& list : graph.program().ranks)
    for (const Action& action : list) {
      const std::size_t copy = action.replica().index() * stages_ + action.stage.index();
      if (gives_weight_gradient(action.op)) last[copy] = node;
      if (action.op == Op::ReduceGrad) reduction[copy] = node;
      ++node;
    }
  const auto groups = reduction_groups(shape, graph.stage_graph());
  for (std::size_t copy = 0; copy < copies; ++copy) {
    if (last[copy] == kNoNode || reduction[copy] == kNoNode || reduction[copy] < last[copy])
      continue;
    const Rank rank = graph.rank(last[copy]);
    if (graph.rank(reduction[copy]) != rank) continue;
    const Stage stage{static_cast<std::int32_t>(copy % stages_)};
    sums_.push_back({.replica = Replica{static_cast<std::int32_t>(copy / stages_)},
                     .stage = stage,
                     .rank = rank,
                     .last = last[copy],
                     .before = before_group(graph, groups, reduction[copy]),
                     .reduction = reduction[copy],
                     .transfer = cost.sum_transfer(stage, rank, shape.ranks),
                     .delay = cost.sum_delay(rank, shape.ranks)});
  }
  std::ranges::sort(sums_, {}, &PlannedSum::last);
  place_.assign(copies, kNone);
  for (std::size_t i = 0; i < sums_.size(); ++i)
    place_[sums_[i].replica.index() * stages_ + sums_[i].stage.index()] = i;
}

AwaitedSum way_of_sum(const Shape& shape, const Cost& cost, const Copy& copy, Rank to) {
  const Rank from = shape.rank(copy.replica, copy.stage);
  if (from == to) return {};
  const bool whole = holds(shape, to, copy.stage);
  return {.transfer = whole ? cost.replica_transfer(copy.stage, from, to, shape.ranks) : 0,
          .delay = cost.delay(from, to, shape.ranks)};
}

namespace {

/// Whether every replica has micro-batches, and so gradients.
bool uses_replicas(const Shape& shape) {
  std::vector<bool> used(static_cast<std::size_t>(shape.replicas()), false);
  for (int m = 0; m < shape.micro_batches; ++m) used[shape.replica(MicroBatch{m}).index()] = true;
  return std::ranges::find(used, false) == used.end();
}

/// The lesser of the ways of a stage's gradients between two ranks.
double lesser_way(const Shape& shape, const Cost& cost, const Copy& one, const Copy& other) {
  const Rank here = shape.rank(one.replica, one.stage),
             there = shape.rank(other.replica, other.stage);
  return std::min(way_of_sum(shape, cost, one, there).way(),
                  way_of_sum(shape, cost, other, here).way());
}

/// The only rank that has another replica of what a rank has; none where there are several, or
/// stages that are reduced together.
std::optional<Rank> partner(const Shape& shape, Rank rank) {
  std::optional<Rank> found;
  if (shape.replicas() != 2 || !shape.ties.empty()) return found;
  for (int s = 0; s < shape.stages(); ++s) {
    const Rank one = shape.rank(Replica{0}, Stage{s}), other = shape.rank(Replica{1}, Stage{s});
    if (one != rank && other != rank) continue;
    const Rank to = one == rank ? other : one;
    if (to == rank || (found && *found != to)) return std::nullopt;
    found = to;
  }
  return found;
}

/// The least ticks from the last pass of a rank, which is one of `copy` with a sum that takes
/// `sum`, until the rank and those that have replicas of its stages have all that they need.
double given_behind(const Shape& shape, const Cost& cost, const Copy& copy, double sum) {
  if (!uses_replicas(shape)) return sum;
  const Rank rank = shape.rank(copy.replica, copy.stage);
  double last = sum;
  for (int r = 0; r < shape.replicas(); ++r)
    last = std::max(last,
                    sum + way_of_sum(shape, cost, copy, shape.rank(Replica{r}, copy.stage)).way());
  if (cost.data_parallel == 1) return last;  // others may have met between passes
  const std::optional<Rank> other = partner(shape, rank);
  if (!other) return last;
  // The two ranks meet for one stage after the other, whichever comes first.
  double rest = 0;
  for (int s = 0; s < shape.stages(); ++s) {
    const Copy one{Replica{0}, Stage{s}}, two{Replica{1}, Stage{s}};
    const bool held =
        shape.rank(one.replica, one.stage) == rank || shape.rank(two.replica, two.stage) == rank;
    if (held && copy.stage != Stage{s}) rest += lesser_way(shape, cost, one, two);
  }
  const Copy twin{Replica{1 - copy.replica.value}, copy.stage};
  return std::max(last, std::max(rest, sum) + lesser_way(shape, cost, copy, twin));
}

}  // namespace

void PlannedSums::join(const Graph& graph, const Cost& cost) {
  const Shape& shape = graph.program().shape;
  const auto groups = reduction_groups(shape, graph.stage_graph());
  awaited_.resize(sums_.size());
  for (std::size_t own = 0; own < sums_.size(); ++own) {
    const Rank rank = sums_[own].rank;
    awaited_[own].push_back({.sum = own});
    for (const Copy& copy : groups[sums_[own].stage.index()]) {
      const std::size_t other = place(copy.replica, copy.stage);
      if (other == kNone || sums_[other].rank == rank) continue;
      awaited_[own].push_back(way_of_sum(shape, cost, copy, rank));
      awaited_[own].back().sum = other;
    }
  }
}

const std::vector<AwaitedSum>& PlannedSums::awaited_by(const Action& reduction) const {
  static const std::vector<AwaitedSum> nothing;
  const std::size_t own = place(reduction.replica(), reduction.stage);
  return own == kNone ? nothing : awaited_[own];
}

double least_sum(const Shape& shape, const Cost& cost, Objective objective) {
  if (!cost.adds_gradients(shape)) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (int s = 0; s < shape.stages(); ++s)
    for (int replica = 0; replica < shape.replicas(); ++replica) {
      const Copy copy{Replica{replica}, Stage{s}};
      const Rank rank = shape.rank(copy.replica, copy.stage);
      const double sum =
          cost.sum_transfer(copy.stage, rank, shape.ranks) + cost.sum_delay(rank, shape.ranks);
      least = std::min(least,
                       objective == Objective::Span ? sum : given_behind(shape, cost, copy, sum));
    }
  return least;
}

}  // namespace plan

std::vector<StageSum> stage_sums(const Graph& graph, const Cost& cost, const Timeline& timeline) {
  cost.require_fits(graph.program().shape);
  plan::require_aligned(graph.program(), timeline);
  const double scale = timeline.ticks_per_unit / cost.ticks_per_unit;
  const auto end_of = [&](Node node) {
    return timeline.ranks[graph.rank(node).index()][graph.position(node)].end;
  };
  std::vector<plan::SumLink> links(timeline.ranks.size());
  std::vector<StageSum> sums;
  const plan::PlannedSums planned(graph, cost);
  for (const plan::PlannedSum& sum : planned.all()) {
    const double ready = end_of(sum.last);
    const Interval time =
        links[sum.rank.index()].take(ready, sum.transfer * scale, sum.delay * scale);
    const double leaves = std::max(time.end, end_of(sum.before));
    sums.push_back({sum.replica, sum.stage, sum.rank, ready, time, {leaves, leaves}});
  }
  for (const plan::PlannedSum& sum : planned.all())
    for (const plan::AwaitedSum& awaited : planned.awaited_by(graph.action(sum.reduction))) {
      Interval& given = sums[awaited.sum].given;
      given.end = std::max(given.end, given.start + awaited.way() * scale);
    }
  return sums;
}

}  // namespace millrace
