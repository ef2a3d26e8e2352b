// Reductions: who takes part in summing a stage's gradient, and what each reduction and optimizer
// step waits for. Split from the graph because these edges join whole lists, not units.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/graph.hpp"

namespace millrace::plan {

/// One copy of a stage.
struct Copy {
  Replica replica;
  Stage stage;
};

/// The copies whose gradients are summed together, for every stage: all replicas of the stage and
/// of the stages tied to it.
[[nodiscard]] std::vector<std::vector<Copy>> reduction_groups(const Shape& shape,
                                                              const StageGraph& graph);

/// Whether a stage owes a reduction: its group has several copies, or ties weights of one.
[[nodiscard]] inline bool owes_reduction(const std::vector<Copy>& group, const StageGraph& graph) {
  return group.size() > 1 || graph.is_tied(group.front().stage);
}

/// The edges into REDUCE_GRAD and STEP.
class Reductions {
 public:
  Reductions(const Program& program, const StageGraph& graph);

  /// Finds the last B or W and the reduction of every copy. `first` are the nodes of Graph.
  void number(const std::vector<Node>& first);

  /// Calls `use(node)` for everything a REDUCE_GRAD or STEP of `rank` waits for.
  template <class Use>
  void for_each_producer(std::size_t rank, const Action& action, Use&& use) const {
    if (action.op == Op::OptimizerStep) return use(last_of_rank_[rank]);
    use(last_weight_[at(action.replica(), action.stage)]);
    for (const Copy& copy : groups_[action.stage.index()]) {
      // Of copies on one rank the last REDUCE_GRAD adds, which the list has behind all of theirs.
      if (program_->shape.rank(copy.replica, copy.stage).index() == rank) continue;
      use(before_reduction_[at(copy.replica, copy.stage)]);
    }
  }

 private:
  [[nodiscard]] std::size_t at(Replica replica, Stage stage) const {
    return replica.index() * stages_ + stage.index();
  }
  void note(std::size_t rank, Node node, const Action& action, std::vector<bool>& reduced);
  [[nodiscard]] Node before(std::size_t rank, Node node, const Action& action) const;

  const Program* program_;
  std::size_t stages_;
  std::vector<std::vector<Copy>> groups_;
  std::vector<Node> last_weight_;       // by copy: its last B or W
  std::vector<Node> before_reduction_;  // by copy: what precedes its group's REDUCE_GRAD
  std::vector<Node> last_of_rank_;      // by rank: its last B, W or REDUCE_GRAD
};

}  // namespace millrace::plan
