// Builds the graph in two passes over the program: fill the lookup tables, then resolve the needs
// of every action. No allocation per action.
#include "millrace/scheduler/plan/graph.hpp"

#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "plan/lookup.hpp"
#include "plan/reductions.hpp"

namespace millrace {

namespace {

void require_inside(const Shape& shape, const Action& action) {
  const bool stage = action.stage.value >= 0 && action.stage.value < shape.stages();
  const bool replica = action.replica_number < shape.replicas();
  const bool unit =
      !has_unit(action.op) ||
      (action.micro_batch.value >= 0 && action.micro_batch.value < shape.micro_batches &&
       action.slice.value >= 0 && action.slice.value < shape.slices);
  if (stage && replica && unit) return;
  throw InvalidArgument(to_string(action) + " lies outside the shape, which has " +
                        std::to_string(shape.stages()) + " stages, " +
                        std::to_string(shape.micro_batches) + " micro-batches, " +
                        std::to_string(shape.slices) + " slices and " +
                        std::to_string(shape.replicas()) + " replicas");
}

}  // namespace

/// Holds what construction needs and the finished graph does not.
class GraphBuilder {
 public:
  GraphBuilder(Graph& graph, const Program& program, std::span<const TiedGroup> tied)
      : graph_(graph), program_(program), lookup_(program.shape), reductions_(program, tied) {}

  void build() {
    number();
    fill();
    graph_.producer_start_.resize(graph_.size() + 1);
    graph_.producers_.reserve(graph_.size());
    Node node = 0;
    for (std::size_t r = 0; r < program_.ranks.size(); ++r)
      for (const Action& action : program_.ranks[r]) resolve(r, action, node++);
    graph_.producer_start_[node] = static_cast<std::uint32_t>(graph_.producers_.size());
  }

 private:
  void number() {
    const auto ranks = static_cast<std::size_t>(program_.shape.ranks);
    require(program_.ranks.size() == ranks,
            "the program has " + std::to_string(program_.ranks.size()) + " lists; its shape has " +
                std::to_string(ranks) + " ranks");
    require(program_.shape.forwards() < plan::kNoNode && program_.size() < plan::kNoNode,
            "the program has " + std::to_string(program_.size()) +
                " actions; a graph holds fewer than 4294967295");
    graph_.first_.resize(ranks + 1);
    for (std::size_t r = 0; r < ranks; ++r)
      graph_.first_[r + 1] = graph_.first_[r] + static_cast<Node>(program_.ranks[r].size());
  }

  void fill() {
    Node node = 0;
    bool joint = false;  // whether any action concerns a whole stage or rank
    for (const auto& list : program_.ranks) {
      for (const Action& action : list) {
        require_inside(program_.shape, action);
        if (has_unit(action.op)) lookup_.insert(action, node);
        joint = joint || !has_unit(action.op);
        ++node;
      }
    }
    if (joint) reductions_.number(graph_.first_);
    for (const Product message :
         {Product::SendForward, Product::RecvForward, Product::SendBackward, Product::RecvBackward})
      graph_.has_messages_ = graph_.has_messages_ || lookup_.has(message);
  }

  void resolve(std::size_t rank, const Action& action, Node node) {
    graph_.producer_start_[node] = static_cast<std::uint32_t>(graph_.producers_.size());
    if (has_unit(action.op)) {
      for (const Need& need : needs(program_.shape, action)) add(rank, node, find(action, need));
      return;
    }
    reductions_.for_each_producer(rank, action, [&](Node producer) { add(rank, node, producer); });
  }

  /// The node that satisfies a need: through the receive where there is one.
  [[nodiscard]] Node find(const Action& action, const Need& need) const {
    if (graph_.has_messages_ && need.stage != action.stage && is_compute(action.op)) {
      const auto receive = action.op == Op::Forward ? Product::RecvForward : Product::RecvBackward;
      const Node node = lookup_.find(receive, action.stage, action.micro_batch, action.slice);
      if (node != plan::kNoNode) return node;
    }
    return lookup_.find(need.product, need.stage, action.micro_batch, need.slice);
  }

  void add(std::size_t rank, Node node, Node producer) {
    const bool implied = producer >= graph_.first_[rank] && producer < node;
    if (producer != plan::kNoNode && !implied) graph_.producers_.push_back(producer);
  }

  Graph& graph_;
  const Program& program_;
  plan::Lookup lookup_;
  plan::Reductions reductions_;
};

Graph::Graph(const Program& program, std::span<const TiedGroup> tied) : program_(&program) {
  GraphBuilder(*this, program, tied).build();
}

Rank Graph::rank(Node node) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), node);
  return Rank{static_cast<std::int32_t>(after - first_.begin()) - 1};
}

const Action& Graph::action(Node node) const {
  const std::size_t r = rank(node).index();
  return program_->ranks[r][node - first_[r]];
}

}  // namespace millrace
