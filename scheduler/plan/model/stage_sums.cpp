// Finds the last B or W and the REDUCE_GRAD of every stage, and times the sums of a timeline.
#include "plan/model/stage_sums.hpp"

#include "plan/model/lookup.hpp"
#include "plan/model/validate.hpp"

namespace millrace {

namespace plan {

PlannedSums::PlannedSums(const Graph& graph, const Cost& cost) {
  if (cost.data_parallel == 1 || !graph.has_joint_actions()) return;
  const Program& program = graph.program();
  const auto stages = static_cast<std::size_t>(program.shape.stages());
  std::vector<Node> last(stages, kNoNode), reduction(stages, kNoNode);
  Node node = 0;
  for (const auto& list : program.ranks)
    for (const Action& action : list) {
      if (gives_weight_gradient(action.op)) last[action.stage.index()] = node;
      if (action.op == Op::ReduceGrad) reduction[action.stage.index()] = node;
      ++node;
    }
  for (std::size_t s = 0; s < stages; ++s) {
    const Stage stage{static_cast<std::int32_t>(s)};
    if (last[s] == kNoNode || reduction[s] == kNoNode || reduction[s] < last[s]) continue;
    const Rank rank = graph.rank(last[s]);
    if (graph.rank(reduction[s]) != rank) continue;
    sums_.push_back({.stage = stage,
                     .rank = rank,
                     .last = last[s],
                     .reduction = reduction[s],
                     .transfer = cost.sum_transfer(stage, rank, program.shape.ranks),
                     .delay = cost.sum_delay(rank, program.shape.ranks)});
  }
  std::ranges::sort(sums_, {}, &PlannedSum::last);
  place_.assign(stages, sums_.size());
  for (std::size_t i = 0; i < sums_.size(); ++i) place_[sums_[i].stage.index()] = i;
  together_ = graph.stage_graph().reduced_together();
}

const PlannedSum* PlannedSums::of(Stage stage) const {
  const std::size_t place = sums_.empty() ? 0 : place_[stage.index()];
  return place < sums_.size() ? &sums_[place] : nullptr;
}

std::vector<Stage> PlannedSums::awaited_by(Stage stage) const {
  std::vector<Stage> awaited;
  const PlannedSum* const own = of(stage);
  if (own == nullptr) return awaited;
  for (const Stage member : together_[stage.index()])
    if (const PlannedSum* const sum = of(member);
        sum != nullptr && (member == stage || sum->rank != own->rank))
      awaited.push_back(member);
  return awaited;
}

double least_sum(const Shape& shape, const Cost& cost) {
  double least = std::numeric_limits<double>::infinity();
  for (int s = 0; s < shape.stages() && cost.data_parallel > 1; ++s) {
    const Rank rank = shape.placement.rank(Stage{s});
    least = std::min(
        least, cost.sum_transfer(Stage{s}, rank, shape.ranks) + cost.sum_delay(rank, shape.ranks));
  }
  return cost.data_parallel > 1 ? least : 0;
}

}  // namespace plan

std::vector<StageSum> stage_sums(const Graph& graph, const Cost& cost, const Timeline& timeline) {
  cost.require_fits(graph.program().shape);
  plan::require_aligned(graph.program(), timeline);
  const double scale = timeline.ticks_per_unit / cost.ticks_per_unit;
  std::vector<plan::SumLink> links(timeline.ranks.size());
  std::vector<StageSum> sums;
  const plan::PlannedSums planned(graph, cost);
  for (const plan::PlannedSum& sum : planned.all()) {
    const auto& list = timeline.ranks[sum.rank.index()];
    const double ready = list[sum.last - graph.first(sum.rank)].end;
    const Interval time =
        links[sum.rank.index()].take(ready, sum.transfer * scale, sum.delay * scale);
    sums.push_back({sum.stage, sum.rank, ready, time});
  }
  return sums;
}

}  // namespace millrace
