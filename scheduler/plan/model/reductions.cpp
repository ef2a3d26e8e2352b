// Groups of copies that reduce together, and the last node of each before its reduction.
#include "plan/model/reductions.hpp"

#include <numeric>
#include <string>

#include "millrace/core/error.hpp"
#include "plan/model/lookup.hpp"

namespace millrace::plan {

namespace {

/// Lowest stage of the tied set that each stage belongs to; a stage that is not tied is its own.
std::vector<std::size_t> tied_roots(const Shape& shape, std::span<const TiedGroup> tied) {
  std::vector<std::size_t> root(static_cast<std::size_t>(shape.stages()));
  std::iota(root.begin(), root.end(), std::size_t{0});
  for (const TiedGroup& group : tied) {
    for (const Stage stage : group.stages) {
      require(stage.value >= 0 && stage.value < shape.stages(),
              "tied stage " + std::to_string(stage.value) + " does not exist; the shape has " +
                  std::to_string(shape.stages()) + " stages");
      const std::size_t from = root[stage.index()];
      const std::size_t to = root[group.stages.front().index()];
      for (std::size_t& other : root)
        if (other == from || other == to) other = std::min(from, to);
    }
  }
  return root;
}

}  // namespace

std::vector<std::vector<Copy>> reduction_groups(const Shape& shape,
                                                std::span<const TiedGroup> tied) {
  const auto root = tied_roots(shape, tied);
  std::vector<std::vector<Copy>> members(root.size());
  for (std::size_t stage = 0; stage < root.size(); ++stage)
    for (int replica = 0; replica < shape.replicas(); ++replica)
      members[root[stage]].push_back({Replica{replica}, Stage{static_cast<std::int32_t>(stage)}});
  std::vector<std::vector<Copy>> groups(root.size());
  for (std::size_t stage = 0; stage < root.size(); ++stage) groups[stage] = members[root[stage]];
  return groups;
}

Reductions::Reductions(const Program& program, std::span<const TiedGroup> tied)
    : program_(&program),
      stages_(static_cast<std::size_t>(program.shape.stages())),
      groups_(reduction_groups(program.shape, tied)),
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
  const bool heads_the_list = &action == program_->ranks[rank].data();
  if (!reduced[copy] && !heads_the_list) before_reduction_[copy] = node - 1;
  reduced[copy] = true;
}

}  // namespace millrace::plan
