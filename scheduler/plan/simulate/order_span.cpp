// Runs the clock from the period's starts and reads from its timeline where each rank's end came
// from.
#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/simulate/clock.hpp"
#include "plan/simulate/period.hpp"
#include "plan/simulate/walk.hpp"

namespace millrace::plan {

namespace {

/// When nothing held the action up any longer: a receive or a reduction stands before.
double released(Op op, const Interval& interval) {
  return is_receive(op) || op == Op::ReduceGrad ? interval.end : interval.start;
}

/// When each rank's first work starts: from there on the rank's list runs as it does in `timeline`.
std::vector<double> first_starts(const Program& program, const Timeline& timeline) {
  std::vector<double> starts(program.ranks.size(), 0);
  for (std::size_t r = 0; r < starts.size(); ++r) {
    const auto& list = program.ranks[r];
    const auto work = std::find_if(
        list.begin(), list.end(), [](const Action& action) { return is_compute(action.op); });
    const auto at = static_cast<std::size_t>(work - list.begin());
    if (at < list.size()) starts[r] = timeline.ranks[r][at].start;
  }
  return starts;
}

/// Where a longest path to the end of each rank begins.
class Origins {
 public:
  Origins(const Graph& graph,
          const Cost& cost,
          const Timeline& timeline,
          const std::vector<double>& starts)
      : graph_(graph), walk_(graph, cost, timeline), timeline_(timeline), starts_(starts) {}

  [[nodiscard]] std::vector<Reach> all() const {
    std::vector<Reach> reach;
    for (std::size_t r = 0; r < starts_.size(); ++r) reach.push_back(of(r));
    return reach;
  }

  [[nodiscard]] Reach of(std::size_t rank) const {
    if (timeline_.ranks[rank].empty()) return {starts_[rank], rank};
    Node node = last(rank);
    std::size_t at = rank;
    while (!begins(at, node)) {
      node = walk_.releaser(node);
      at = graph_.rank(node).index();
    }
    return {timeline_.ranks[rank].back().end, at};
  }

  /// Whether the path to the end of `rank` begins with its own start and takes what `cost` says.
  [[nodiscard]] bool is_own(std::size_t rank, const Cost& cost) const {
    if (timeline_.ranks[rank].empty()) return false;
    Node node = last(rank);
    std::size_t at = rank;
    while (lasts(node, cost)) {
      if (begins(at, node)) return at == rank;
      node = walk_.releaser(node);
      at = graph_.rank(node).index();
    }
    return false;
  }

 private:
  [[nodiscard]] Node last(std::size_t rank) const {
    return graph_.first(Rank{static_cast<std::int32_t>(rank) + 1}) - 1;
  }

  [[nodiscard]] bool begins(std::size_t rank, Node node) const {
    return released(graph_.action(node).op, walk_.interval(node)) <= starts_[rank] ||
           walk_.releaser(node) == kNoNode;
  }

  [[nodiscard]] bool lasts(Node node, const Cost& cost) const {
    const Action& action = graph_.action(node);
    if (is_receive(action.op)) return true;
    const Interval& interval = walk_.interval(node);
    const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[graph_.rank(node).index()];
    return interval.end == interval.start + cost.ticks(action) / speed;
  }

  const Graph& graph_;
  Walk walk_;
  const Timeline& timeline_;
  const std::vector<double>& starts_;
};

/// Whether all times are integers, so that sums of them are.
bool is_whole(const Cost& cost, const Shape& shape) {
  const auto whole = [](double ticks) { return ticks == std::floor(ticks); };
  for (const auto* ticks : {&cost.forward,
                            &cost.backward_input,
                            &cost.backward_weight,
                            &cost.recompute,
                            &cost.backward,
                            &cost.link_latency})
    if (!std::all_of(ticks->begin(), ticks->end(), whole)) return false;
  const bool free = cost.bytes_per_tick == 0 && cost.link_bytes_per_tick.empty();
  const bool sums = cost.adds_gradients(shape) && !cost.gradient_bytes.empty();
  return whole(cost.latency) && whole(cost.optimizer) &&
         std::ranges::all_of(cost.pair.ticks, whole) && cost.rank_speed.empty() &&
         (free || (cost.message_bytes == 0 && cost.boundary_bytes.empty() && !sums));
}

/// The rank that needs longest from its first start to the end of its list.
std::size_t longest(const Timeline& timeline, const std::vector<double>& starts, double& span) {
  std::size_t rank = 0;
  span = 0;
  for (std::size_t r = 0; r < starts.size(); ++r) {
    if (timeline.ranks[r].empty()) continue;
    const double length = timeline.ranks[r].back().end - starts[r];
    if (length > span) rank = r;
    span = std::max(span, length);
  }
  return rank;
}

/// What the passes of all ranks take.
double work_of(const Program& program, const Cost& cost) {
  double work = 0;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    const auto& list = program.ranks[r];
    const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[r];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const double pair = cost.pair.at(list, i);
      work += (pair < 0 ? cost.ticks(list[i]) : pair) / speed;
      if (pair >= 0) ++i;
    }
  }
  return work;
}

/// The larger of that of a processor per rank, whose timeline is another, and what keeps the
/// processors busy.
CycleRatio shared_span(const Graph& graph, const Cost& cost) {
  Cost apart = cost;
  apart.cores = 0;
  Clock clock(graph, apart);
  if (!clock.run()) return {std::numeric_limits<double>::infinity(), 1};
  const CycleRatio span = order_span(graph, apart, clock.take());
  const CycleRatio busy{work_of(graph.program(), cost), static_cast<double>(cost.cores)};
  return span.value() > busy.value() ? span : busy;
}

}  // namespace

CycleRatio order_span(const Graph& graph, const Cost& cost, const Timeline& timeline) {
  if (cost.shares_cores(graph.program().shape.ranks)) return shared_span(graph, cost);
  const Program& program = graph.program();
  std::vector<double> starts = first_starts(program, timeline);
  double span = 0;
  const std::size_t rank = longest(timeline, starts, span);
  if (span > 0 && timeline.ticks_per_unit == cost.ticks_per_unit &&
      Origins(graph, cost, timeline, starts).is_own(rank, cost))
    return {span, 1};
  Period period(std::vector<double>(starts.size(), 0), is_whole(cost, program.shape));
  while (true) {
    Clock clock(graph, cost, {.start = period.starts()});
    if (!clock.run()) return {std::numeric_limits<double>::infinity(), 1};
    const Timeline run = clock.take();
    if (!period.improve(Origins(graph, cost, run, period.starts()).all())) return period.ratio();
  }
}

}  // namespace millrace::plan
