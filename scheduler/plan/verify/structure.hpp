// Structure: rules 1 to 4 and 6, which need no order between ranks.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/verify.hpp"
#include "plan/model/lookup.hpp"

namespace millrace::plan {

/// Checks rules 1 to 4 and, for a program with messages, the parts of rule 6 that need no graph.
class Structure {
 public:
  explicit Structure(const Program& program);

  /// All violations found.
  std::vector<Violation> check();

 private:
  bool frame();
  [[nodiscard]] bool passes_fast_path() const;
  void lists();
  void visit(Rank rank, std::size_t position, const Action& action, Node node);
  [[nodiscard]] bool inside(Rank rank, const Action& action) const;
  [[nodiscard]] std::string outside(Rank rank, const Action& action, Rule& rule) const;
  void repeated(Rank rank, std::size_t position, const Action& action, Node first);
  void pair(Rank rank, std::size_t position);
  void joint(Rank rank, std::size_t position, const Action& action);
  void completeness();
  void unit(Stage stage, MicroBatch micro_batch, Slice slice);
  void weight_half(const Action& action, Node gradient, Node weight);
  void reductions();
  void steps();
  void messages();
  void message(const Action& producer, Node made, const StageLink& link);

  void report(Rule rule, Rank rank, std::size_t position, std::string message);
  void report_missing(Rule rule, const Action& action);
  [[nodiscard]] const Action& at(Rank rank, Node node) const;
  [[nodiscard]] Rank home(const Action& action) const;

  const Program& program_;
  StageGraph graph_;
  std::vector<Violation> violations_;
  std::vector<Node> first_;
  std::vector<std::size_t> reduced_;  // by copy: REDUCE_GRADs
  std::vector<std::size_t> steps_;    // by rank: STEPs
  Lookup lookup_;
  std::int64_t forwards_ = 0;
  std::int64_t fused_ = 0;
  std::int64_t split_ = 0;  // I or W
  bool messages_ = false;
  bool outside_ = false;
};

/// Whether outside() has nothing to say; without building a message, for it is asked per action.
inline bool Structure::inside(Rank rank, const Action& action) const {
  const Shape& shape = program_.shape;
  if (action.op == Op::OptimizerStep) return true;
  const auto below = [](std::int32_t value, int bound) { return value >= 0 && value < bound; };
  if (!below(action.stage.value, shape.stages()) || action.replica_number >= shape.replicas() ||
      home(action) != rank)
    return false;
  if (!has_unit(action.op)) return true;
  const bool forward =
      action.op == Op::Forward || action.op == Op::SendForward || action.op == Op::RecvForward;
  return below(action.micro_batch.value, shape.micro_batches) &&
         below(action.slice.value, shape.slices) &&
         action.replica() == shape.replica(action.micro_batch) && (forward || !shape.forward_only);
}

}  // namespace millrace::plan
