// The simulation yields the idle time that the order costs; the measured rest is delay.
#include "training/watch/pass_use.hpp"

#include <algorithm>
#include <cstddef>
#include <variant>

#include "millrace/core/error.hpp"
#include "millrace/training/records.hpp"

namespace millrace {
namespace {

/// First start, last end and busy time of a rank's compute actions.
struct Extent {
  double first = 0;
  double last = 0;
  double busy = 0;
  bool any = false;

  void add(const Interval& interval) {
    if (!any) first = last = interval.start;
    any = true;
    busy += std::max(0.0, interval.end - std::max(interval.start, last));
    last = std::max(last, interval.end);
  }

  [[nodiscard]] double gaps() const { return std::max(0.0, last - first - busy); }
};

struct Extents {
  std::vector<Extent> ranks;
  double first = 0;
  double last = 0;
};

Extents extents_of(const Program& program, const Timeline& timeline) {
  Extents all;
  bool any = false;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    Extent& extent = all.ranks.emplace_back();
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i)
      if (is_compute(program.ranks[rank][i].op)) extent.add(timeline.ranks[rank][i]);
    if (!extent.any) continue;
    all.first = any ? std::min(all.first, extent.first) : extent.first;
    all.last = any ? std::max(all.last, extent.last) : extent.last;
    any = true;
  }
  return all;
}

/// From when a message, or a sum over copies, was no longer waited for.
double ready(const Graph& graph, const Timeline& timeline, Node node, const Interval& interval) {
  double ready = interval.start;
  for (const Node producer : graph.producers(node)) {
    const Rank rank = graph.rank(producer);
    ready = std::max(ready, timeline.ranks[rank.index()][graph.position(producer)].end);
  }
  return std::min(ready, interval.end);
}

/// Time in messages: all of it, and what lies between `first` and `last`.
struct Transfer {
  double all = 0;
  double inside = 0;
};

Transfer transfer_of(const Graph& graph, const Timeline& timeline, Rank rank, const Extents& of) {
  Transfer transfer;
  const auto& list = graph.program().ranks[rank.index()];
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (is_compute(list[i].op) || list[i].op == Op::OptimizerStep) continue;
    const Interval& interval = timeline.ranks[rank.index()][i];
    const double start =
        is_send(list[i].op)
            ? interval.start
            : ready(graph, timeline, graph.first(rank) + static_cast<Node>(i), interval);
    transfer.all += interval.end - start;
    transfer.inside += std::max(0.0, std::min(interval.end, of.last) - std::max(start, of.first));
  }
  return transfer;
}

/// Every stage as slow as the mean of all.
Cost with_equal_stages(Cost cost) {
  const auto slices = static_cast<std::size_t>(cost.slices);
  for (auto* times : {&cost.forward,
                      &cost.backward_input,
                      &cost.backward_weight,
                      &cost.backward,
                      &cost.recompute})
    for (std::size_t slice = 0; slice < slices && !times->empty(); ++slice) {
      double sum = 0;
      for (std::size_t i = slice; i < times->size(); i += slices) sum += (*times)[i];
      const double mean = sum * static_cast<double>(slices) / static_cast<double>(times->size());
      for (std::size_t i = slice; i < times->size(); i += slices) (*times)[i] = mean;
    }
  return cost;
}

Extents simulated(const Graph& graph, const Cost& cost) {
  const auto result = simulate(graph, cost);
  const auto* timeline = std::get_if<Timeline>(&result);
  require(timeline != nullptr, "a program that has run cannot stand still");
  return extents_of(graph.program(), *timeline);
}

/// What the order of the program alone makes a rank wait for.
Bubble bubble_of(const Extents& all, const Extents& equal, std::size_t rank) {
  Bubble bubble;
  const Extent& extent = all.ranks[rank];
  bubble.warm_up = (extent.any ? extent.first : all.last) - all.first;
  bubble.drain = extent.any ? all.last - extent.last : 0;
  bubble.imbalance = std::max(0.0, extent.gaps() - equal.ranks[rank].gaps());
  bubble.dependency = extent.gaps() - bubble.imbalance;
  return bubble;
}

/// The same so that it adds up to what was measured.
Bubble explained(Bubble bubble, double idle, double transfer) {
  bubble.transfer = std::min(idle, transfer);
  const double rest = idle - bubble.transfer;
  const double order = bubble.total() - bubble.transfer;
  const double factor = order > rest ? rest / order : 1;
  for (double* part : {&bubble.warm_up, &bubble.drain, &bubble.imbalance, &bubble.dependency})
    *part *= factor;
  bubble.delay = std::max(0.0, rest - order);
  return bubble;
}

}  // namespace

PassUse pass_use(const Graph& graph, const Timeline& timeline) {
  const Program& program = graph.program();
  Profile profile(program);
  profile.add(timeline);
  const Cost cost = profile.cost({}, {});
  const Extents measured = extents_of(program, timeline);
  const Extents order = simulated(graph, cost);
  const Extents equal = simulated(graph, with_equal_stages(cost));
  PassUse use;
  use.makespan = measured.last - measured.first;
  for (std::size_t i = 0; i < program.ranks.size(); ++i) {
    const Transfer transfer =
        transfer_of(graph, timeline, Rank{static_cast<std::int32_t>(i)}, measured);
    const double idle = std::max(0.0, use.makespan - measured.ranks[i].busy);
    use.compute.push_back(measured.ranks[i].busy);
    use.transfer.push_back(transfer.all);
    use.bubble.push_back(explained(bubble_of(order, equal, i), idle, transfer.inside));
  }
  return use;
}

}  // namespace millrace
