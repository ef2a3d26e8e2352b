// Groups of copies that reduce together, and the last node of each before its reduction.
#include "plan/model/reductions.hpp"

#include "plan/model/lookup.hpp"

namespace millrace::plan {

std::vector<std::vector<Copy>> reduction_groups(const Shape& shape, const StageGraph& graph) {
  const auto together = graph.reduced_together();
  std::vector<std::vector<Copy>> groups(together.size());
  for (std::size_t stage = 0; stage < groups.size(); ++stage)
    for (const Stage member : together[stage])
      for (int replica = 0; replica < shape.replicas(); ++replica)
        groups[stage].push_back({Replica{replica}, member});
  return groups;
}

Reductions::Reductions(const Program& program, const StageGraph& graph)
    : program_(&program),
      stages_(static_cast<std::size_t>(program.shape.stages())),
      groups_(reduction_groups(program.shape, graph)),
      last_weight_(stages_ * static_cast<std::size_t>(program.shape.replicas()), kNoNode),
      before_reduction_(last_weight_.size(), kNoNode),
      last_of_rank_(program.ranks.size(), kNoNode) {}

void Reductions::number(const std::vector<Node>& first) {
  std::vector<bool> reduced(last_weight_.size(), false);
  for (std::size_t rank = 0; rank < program_->ranks.size(); ++rank) {
    Node node = first[rank];
    for (const Action& action : program_->ranks[rank]) note(rank, node++, action, reduced);
  }
  for (std::size_t copy = 0; copy < reduced.size(); ++copy)
    if (!reduced[copy]) before_reduction_[copy] = last_weight_[copy];
}

void Reductions::note(std::size_t rank,
                      Node node,
                      const Action& action,
                      std::vector<bool>& reduced) {
  const bool weight = gives_weight_gradient(action.op);
  if (!weight && action.op != Op::ReduceGrad) return;
  const std::size_t copy = at(action.replica(), action.stage);
  last_of_rank_[rank] = node;
  if (weight) {
    last_weight_[copy] = node;
    return;
  }
  if (!reduced[copy]) before_reduction_[copy] = before(rank, node, action);
  reduced[copy] = true;
}

/// What a REDUCE_GRAD follows that is not one of the same group itself.
Node Reductions::before(std::size_t rank, Node node, const Action& action) const {
  const auto group_of = [&](const Action& each) {
    return groups_[each.stage.index()].front().stage;
  };
  const Action* first = &action;
  const Action* const head = program_->ranks[rank].data();
  while (first != head && first[-1].op == Op::ReduceGrad && group_of(first[-1]) == group_of(action))
    --first;
  if (first == head) return kNoNode;
  return node - 1 - static_cast<Node>(&action - first);
}

}  // namespace millrace::plan
