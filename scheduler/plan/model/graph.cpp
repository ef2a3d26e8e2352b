// Builds the graph in two passes over the program: fill the lookup tables, then resolve the needs
// of every action. No allocation per action.
#include "millrace/scheduler/plan/graph.hpp"

#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "plan/model/lookup.hpp"
#include "plan/model/reductions.hpp"
#include "plan/model/validate.hpp"

namespace millrace {

/// Holds what construction needs and the finished graph does not.
class GraphBuilder {
 public:
  GraphBuilder(Graph& graph, const Program& program, ListOrder order)
      : graph_(graph),
        program_(program),
        open_(order == ListOrder::Open),
        pipeline_{graph.stage_graph(), program.shape.slices},
        lookup_(program.shape, pipeline_.graph),
        reductions_(program, graph.stage_graph()) {}

  void build() {
    number();
    fill();
    graph_.sole_.reserve(graph_.size());
    Node node = 0;
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
      rank_ = r;
      own_ = graph_.first_[r];
      own_end_ = graph_.first_[r + 1];
      for (const Action& action : program_.ranks[r]) {
        graph_.sole_.push_back(Graph::kNone);
        resolve(r, action, node++);
      }
    }
  }

 private:
  void number() {
    const std::size_t ranks = program_.ranks.size();
    require(program_.size() < Graph::kSeveral,
            "the program has " + std::to_string(program_.size()) +
                " actions; a graph holds fewer than " + std::to_string(Graph::kSeveral));
    // The tables have a place for each unit: a shape far beyond its program is refused.
    const auto most = static_cast<std::int64_t>(program_.size()) * 64 + (std::int64_t{1} << 20);
    require(plan::owes_at_most(program_.shape, std::min<std::int64_t>(most, plan::kNoNode - 1)),
            "the program has " + std::to_string(program_.size()) +
                " actions; its shape owes far more: " + std::to_string(program_.shape.stages()) +
                " stages, " + std::to_string(program_.shape.micro_batches) + " micro-batches and " +
                std::to_string(program_.shape.slices) + " slices");
    graph_.first_.resize(ranks + 1);
    for (std::size_t r = 0; r < ranks; ++r)
      graph_.first_[r + 1] = graph_.first_[r] + static_cast<Node>(program_.ranks[r].size());
  }

  void fill() {
    const plan::Bounds bounds(program_.shape);
    bool joint = false, pairs = false;
    Node node = 0;
    for (const auto& list : program_.ranks) {
      for (const Action& action : list) {
        bounds.require_inside(action);
        if (has_unit(action.op) && lookup_.insert(action, node) != node && open_)
          throw InvalidArgument("the program has the " + describe(action) + " twice");
        joint = joint || !has_unit(action.op);
        pairs = pairs || action.with_next;
        ++node;
      }
    }
    graph_.has_joint_actions_ = joint;
    graph_.has_pairs_ = pairs;
    if (graph_.has_joint_actions_) reductions_.number(graph_.first_);
    graph_.has_messages_ = lookup_.has_messages();
  }

  __attribute__((always_inline)) void resolve(std::size_t rank, const Action& action, Node node) {
    if (has_unit(action.op)) {
      // Inlined into each op's case, where the product is a constant.
      for_each_need(
          pipeline_, action, [&](const Need& need) __attribute__((always_inline)) {
            add(node, find(action, need));
          });
      return;
    }
    reductions_.for_each_producer(rank, action, [&](Node producer) { add(node, producer); });
  }

  /// The node that satisfies a need: through the receive where there is one.
  [[nodiscard]] Node find(const Action& action, const Need& need) const {
    if (need.link != kNoLink && graph_.has_messages_) {
      const Node node = find_message(action, need);
      if (node != plan::kNoNode || !is_compute(action.op)) return node;
    }
    return lookup_.find(need.product, need.stage, action.micro_batch, need.slice);
  }

  /// The receive that brings what F, B or I needs; of a receive, its send.
  [[nodiscard]] __attribute__((noinline)) Node find_message(const Action& action,
                                                            const Need& need) const {
    Product product = need.product;
    if (is_compute(action.op))
      product = action.op == Op::Forward ? Product::RecvForward : Product::RecvBackward;
    return lookup_.find(product, need.link, action.micro_batch, need.slice);
  }

  /// Whether program order says that the node waits for the producer: a receive only posts.
  [[nodiscard]] bool implied(Node node, Node producer) const {
    if (producer < own_ || producer >= node || open_) return false;
    return !graph_.has_messages_ || !is_receive(program_.ranks[rank_][producer - own_].op);
  }

  void add(Node node, Node producer) {
    if (producer == plan::kNoNode || implied(node, producer)) return;
    graph_.has_wrong_lists_ =
        graph_.has_wrong_lists_ || (producer >= node && producer < own_end_ && !open_);
    Node& sole = graph_.sole_[node];
    if (sole == Graph::kNone)
      sole = producer;
    else
      add_another(node, producer);
  }

  void add_another(Node node, Node producer) {
    auto& producers = graph_.producers_;
    Node& sole = graph_.sole_[node];
    if (sole < Graph::kSeveral) {
      const Node first = sole;
      require(producers.size() < Graph::kSeveral - 1, "the program has too many dependencies");
      sole = Graph::kSeveral + static_cast<Node>(producers.size());
      producers.insert(producers.end(), {1, first});
    }
    producers.push_back(producer);
    ++producers[sole - Graph::kSeveral];
  }

  Graph& graph_;
  const Program& program_;
  bool open_;
  std::size_t rank_ = 0;        // that is being resolved
  Node own_ = 0, own_end_ = 0;  // its nodes
  Pipeline pipeline_;
  plan::Lookup lookup_;
  plan::Reductions reductions_;
};

Graph::Graph(const Program& program, ListOrder order)
    : program_(&program), stage_graph_(program.shape) {
  plan::validate_lists(program);
  GraphBuilder(*this, program, order).build();
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
