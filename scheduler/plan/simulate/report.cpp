// Evaluates a timeline: makespan and span, busy and idle time by cause. Figures are differences and
// sums of ticks, so they are exact when the ticks are integers.
#include <algorithm>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/model/memory.hpp"
#include "plan/model/stage_sums.hpp"
#include "plan/model/validate.hpp"
#include "plan/simulate/clock.hpp"
#include "plan/simulate/period.hpp"

namespace millrace {

namespace {

bool is_work(Op op) {
  return is_compute(op) || op == Op::OptimizerStep;
}

/// First start, last end and busy time of one rank's work.
struct Extent {
  double first = 0;
  double last = 0;
  double busy = 0;
  bool any = false;

  /// Idle time between the first and the last op.
  [[nodiscard]] double gaps() const { return last - first - busy; }
};

/// Overlapping intervals (the halves of an atomic pair) count once.
Extent extent(const std::vector<Action>& list, const std::vector<Interval>& intervals) {
  Extent result;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!is_work(list[i].op)) continue;
    const Interval& interval = intervals[i];
    if (!result.any) result.first = result.last = interval.start;
    result.any = true;
    result.busy += std::max(0.0, interval.end - std::max(interval.start, result.last));
    result.last = std::max(result.last, interval.end);
  }
  return result;
}

std::vector<Extent> extents(const Program& program, const Timeline& timeline) {
  std::vector<Extent> result;
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    result.push_back(extent(program.ranks[r], timeline.ranks[r]));
  return result;
}

/// From the first start to the last end of any rank; busy is the busiest rank's.
Extent hull(const std::vector<Extent>& all) {
  Extent whole;
  for (const Extent& each : all) {
    if (!each.any) continue;
    whole.first = whole.any ? std::min(whole.first, each.first) : each.first;
    whole.last = whole.any ? std::max(whole.last, each.last) : each.last;
    whole.busy = std::max(whole.busy, each.busy);
    whole.any = true;
  }
  return whole;
}

/// Idle time of every rank, in units: in the gaps of one step, and per step when steps overlap.
struct IdleTimes {
  std::vector<double> gaps, overlapped;
};

IdleTimes idle_times(const std::vector<Extent>& all, double span, double ticks_per_unit) {
  IdleTimes idle;
  for (const Extent& each : all) {
    idle.gaps.push_back(each.gaps() / ticks_per_unit);
    idle.overlapped.push_back(span - each.busy / ticks_per_unit);
  }
  return idle;
}

double span_of(const Graph& graph, const Cost& cost, const Timeline& timeline) {
  const plan::CycleRatio span = plan::order_span(graph, cost, timeline);
  return span.ticks / (span.wraps * cost.ticks_per_unit);
}

/// Idle times if the program ran with this cost, whose ticks are `scale` times finer.
IdleTimes idle_with(const Graph& graph, const Cost& cost, double scale) {
  plan::Clock clock(graph, cost);
  const std::size_t ranks = graph.program().ranks.size();
  if (!clock.run()) return {std::vector<double>(ranks, 0), std::vector<double>(ranks, 0)};
  const Timeline timeline = clock.take();
  return idle_times(extents(graph.program(), timeline),
                    span_of(graph, cost, timeline) / scale,
                    cost.ticks_per_unit * scale);
}

bool has_links(const Cost& cost, const Shape& shape) {
  const auto positive = [](double value) { return value > 0; };
  return cost.latency > 0 || cost.message_bytes > 0 || !cost.boundary_bytes.empty() ||
         cost.adds_gradients(shape) ||
         std::any_of(cost.link_latency.begin(), cost.link_latency.end(), positive);
}

Cost without_sharing(Cost cost) {
  cost.cores = 0;
  return cost;
}

Cost without_links(Cost cost) {
  cost.latency = 0;
  cost.link_latency.clear();
  cost.bytes_per_tick = 0;
  cost.link_bytes_per_tick.clear();
  cost.contention = false;
  cost.data_parallel = 1;
  cost.gradient_bytes.clear();
  return cost;
}

/// Replaces every stage's time by the sum over all stages (the mean times the number of stages, so
/// that integers stay integers), slice by slice. Returns whether anything was unequal.
bool equalise(std::vector<double>& times, std::size_t slices) {
  bool unequal = false;
  for (std::size_t k = 0; k < slices && !times.empty(); ++k) {
    double sum = 0;
    for (std::size_t i = k; i < times.size(); i += slices) {
      unequal = unequal || times[i] != times[k];
      sum += times[i];
    }
    for (std::size_t i = k; i < times.size(); i += slices) times[i] = sum;
  }
  return unequal;
}

/// Divides every time by the speed of the rank that runs the stage.
void apply_speeds(Cost& cost, const Shape& shape) {
  if (cost.rank_speed.empty()) return;
  const auto slices = static_cast<std::size_t>(cost.slices);
  for (auto* times : {&cost.forward,
                      &cost.backward_input,
                      &cost.backward_weight,
                      &cost.backward,
                      &cost.recompute})
    for (std::size_t i = 0; i < times->size(); ++i) {
      const Rank rank = shape.placement.rank(Stage{static_cast<std::int32_t>(i / slices)});
      (*times)[i] /= cost.rank_speed[rank.index()];
    }
  cost.rank_speed.clear();
}

/// The cost with every stage alike, in ticks `stages` times finer. Returns whether it differs.
bool make_equal(Cost& cost, const Shape& shape) {
  apply_speeds(cost, shape);
  const auto slices = static_cast<std::size_t>(cost.slices);
  bool unequal = false;
  for (auto* times : {&cost.forward,
                      &cost.backward_input,
                      &cost.backward_weight,
                      &cost.backward,
                      &cost.recompute})
    unequal = equalise(*times, slices) || unequal;
  cost.optimizer *= shape.stages();
  for (double& ticks : cost.pair.ticks) ticks *= shape.stages();
  return unequal;
}

/// Idle time, of a rank that waits for no processor, that has free links besides, equal stages too.
struct IdleWithout {
  double processor, links, imbalance;
};

/// Splits idle time: what shared processors explain, what links, what unequal stages, the rest.
void split(Idle& idle, double total, const IdleWithout& without) {
  idle.processor = std::max(0.0, total - without.processor);
  double rest = total - idle.processor;
  idle.transfer = std::max(0.0, rest - without.links);
  rest -= idle.transfer;
  idle.imbalance = std::max(0.0, rest - without.imbalance);
  idle.dependency = rest - idle.imbalance;
}

/// Explains the gaps of each rank, and its idle time when steps overlap.
void explain(const Graph& graph, const Cost& cost, const IdleTimes& idle, Report& report) {
  const Shape& shape = graph.program().shape;
  const Cost apart = without_sharing(cost);
  const Cost linkless = without_links(apart);
  Cost equal = linkless;
  const bool unequal = make_equal(equal, shape);
  const IdleTimes alone = cost.shares_cores(shape.ranks) ? idle_with(graph, apart, 1) : idle;
  const IdleTimes free = has_links(cost, shape) ? idle_with(graph, linkless, 1) : alone;
  const IdleTimes flat = unequal ? idle_with(graph, equal, shape.stages()) : alone;
  for (std::size_t r = 0; r < report.ranks.size(); ++r) {
    RankReport& rank = report.ranks[r];
    split(rank.idle, idle.gaps[r], {alone.gaps[r], free.gaps[r], flat.gaps[r]});
    split(rank.idle_overlapped,
          idle.overlapped[r],
          {alone.overlapped[r], free.overlapped[r], flat.overlapped[r]});
  }
}

/// From the first op of any rank to the last, which may be a REDUCE_GRAD that waits for a sum.
Extent whole_step(const Graph& graph, const plan::PlannedSums& sums, const Timeline& timeline) {
  Extent whole = hull(extents(graph.program(), timeline));
  for (const plan::PlannedSum& sum : sums.all()) {
    const auto& list = timeline.ranks[sum.rank.index()];
    whole.last = std::max(whole.last, list[sum.reduction - graph.first(sum.rank)].end);
  }
  return whole;
}

/// In units. What of the makespan is left without sums is simulated.
SumReport sums_of(const Graph& graph,
                  const Cost& cost,
                  const plan::PlannedSums& sums,
                  double makespan) {
  if (sums.none()) return {};
  std::vector<double> busy(graph.program().ranks.size(), 0);
  for (const plan::PlannedSum& sum : sums.all()) {
    busy[sum.rank.index()] += sum.transfer + sum.delay;
    for (const plan::AwaitedSum& awaited : sums.awaited_by(graph.action(sum.reduction)))
      busy[sums.all()[awaited.sum].rank.index()] += awaited.way();
  }
  Cost alone = cost;
  alone.data_parallel = 1;
  alone.gradient_bytes.clear();
  SumReport result;
  result.longest = *std::ranges::max_element(busy) / cost.ticks_per_unit;
  plan::Clock clock(graph, alone);
  if (!clock.run()) return result;
  const Extent whole = hull(extents(graph.program(), clock.take()));
  result.exposed = std::max(0.0, makespan - (whole.last - whole.first) / cost.ticks_per_unit);
  return result;
}

double length(const Graph& graph, const Timeline& timeline, const std::vector<Node>& path) {
  if (path.empty()) return 0;
  const auto interval = [&](Node node) {
    return timeline.ranks[graph.rank(node).index()][graph.position(node)];
  };
  return interval(path.back()).end - interval(path.front()).start;
}

}  // namespace

Report report(const Graph& graph, const Cost& cost, const Timeline& timeline) {
  const Program& program = graph.program();
  cost.require_fits(program.shape);
  plan::require_aligned(program, timeline);
  const auto all = extents(program, timeline);
  const plan::PlannedSums sums(graph, cost);
  const Extent whole = whole_step(graph, sums, timeline);
  const std::vector<plan::MemoryPeak> peaks = plan::memory_peaks(program, cost);
  const double units = timeline.ticks_per_unit;
  Report result;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Extent& each = all[r];
    RankReport& rank = result.ranks.emplace_back();
    rank.busy = each.busy / units;
    rank.idle.warm_up = ((each.any ? each.first : whole.last) - whole.first) / units;
    rank.idle.drain = (each.any ? whole.last - each.last : 0) / units;
    rank.peak_activation = peaks[r].activation;
    rank.peak_bytes = peaks[r].bytes;
    result.span_asap = std::max(result.span_asap, (each.last - each.first) / units);
  }
  result.span = span_of(graph, cost, timeline);
  explain(graph, cost, idle_times(all, result.span, units), result);
  result.makespan = (whole.last - whole.first) / units;
  result.sums = sums_of(graph, cost, sums, result.makespan);
  const double before = (cost.passes - 1) * (result.makespan - result.sums.exposed);
  result.step = before + result.makespan + cost.after_passes / cost.ticks_per_unit;
  result.bubble_makespan = result.makespan - whole.busy / units;
  result.bubble_span = result.span - whole.busy / units;
  result.critical_path = length(graph, timeline, critical_path(graph, cost, timeline)) / units;
  return result;
}

}  // namespace millrace
