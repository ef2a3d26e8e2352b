// Reductions: who takes part in summing a stage's gradient, and what each reduction and optimizer
// step waits for. Split from the graph because these edges join whole lists, not units.
#pragma once

#include <span>
#include <vector>

#include "millrace/scheduler/plan/dependencies.hpp"
#include "millrace/scheduler/plan/graph.hpp"

namespace millrace::plan {

/// One copy of a stage.
struct Copy {
  Replica replica;
  Stage stage;
};

/// The copies whose gradients are summed together, for every stage: all replicas of the stage and
/// of the stages tied to it. Throws InvalidArgument when a tied stage does not exist.
[[nodiscard]] std::vector<std::vector<Copy>> reduction_groups(const Shape& shape,
                                                              std::span<const TiedGroup> tied);

/// The edges into REDUCE_GRAD and STEP.
class Reductions {
 public:
  Reductions(const Program& program, std::span<const TiedGroup> tied);

  /// Finds the last B or W and the reduction of every copy. `first` are the nodes of Graph.
  void number(const std::vector<Node>& first);

  /// Calls `use(node)` for everything a REDUCE_GRAD or STEP of `rank` waits for.
  template <class Use>
  void for_each_producer(std::size_t rank, const Action& action, Use&& use) const {
    if (action.op == Op::OptimizerStep) return use(last_of_rank_[rank]);
    use(last_weight_[at(action.replica(), action.stage)]);
    for (const Copy& copy : groups_[action.stage.index()]) {
      if (copy.stage == action.stage && copy.replica == action.replica()) continue;
      use(before_reduction_[at(copy.replica, copy.stage)]);
    }
  }

 private:
  [[nodiscard]] std::size_t at(Replica replica, Stage stage) const {
    return replica.index() * stages_ + stage.index();
  }
  void note(std::size_t rank, Node node, const Action& action, std::vector<bool>& reduced);

  const Program* program_;
  std::size_t stages_;
  std::vector<std::vector<Copy>> groups_;
  std::vector<Node> last_weight_;       // by copy: its last B or W
  std::vector<Node> before_reduction_;  // by copy: what precedes its REDUCE_GRAD
  std::vector<Node> last_of_rank_;      // by rank: its last B, W or REDUCE_GRAD
};

}  // namespace millrace::plan
