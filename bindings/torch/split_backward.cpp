// What leads where is found by one walk over the unit's graph; hooks before the split nodes keep
// what arrives there.
#include "torch/split_backward.hpp"

#include <cstdint>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <unordered_map>

namespace millrace::on_torch {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// What a node leads to, as bits.
enum Leads : std::uint8_t { kNowhere = 0, kToInput = 1, kToParameter = 2 };

/// The nodes between some roots and the leaves that are asked for.
class Ways {
 public:
  Ways(const edge_list& inputs, const edge_list& parameters) {
    for (const Edge& edge : inputs)
      if (edge.is_valid()) leads_[edge.function.get()] |= kToInput;
    for (const Edge& edge : parameters)
      if (edge.is_valid()) leads_[edge.function.get()] |= kToParameter;
  }

  /// Looks at everything that `root` reaches, once; calls `found(node)` for every node when it is
  /// known where each of its edges leads.
  template <class Found>
  void walk(Node* root, const Found& found) {
    if (root == nullptr || !leads_.emplace(root, kNowhere).second) return;
    std::vector<std::pair<Node*, std::size_t>> path{{root, 0}};
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next == node->next_edges().size()) {
        for (const Edge& edge : node->next_edges()) leads_[node] |= of(edge);
        found(node);
        path.pop_back();
      } else {
        Node* child = node->next_edge(next++).function.get();
        if (child != nullptr && leads_.emplace(child, kNowhere).second) path.emplace_back(child, 0);
      }
    }
  }

  [[nodiscard]] std::uint8_t of(const Edge& edge) const {
    if (!edge.is_valid()) return kNowhere;
    const auto found = leads_.find(edge.function.get());
    return found == leads_.end() ? std::uint8_t{kNowhere} : found->second;
  }

  [[nodiscard]] bool leads_to_input(Node& node) const { return (leads_.at(&node) & kToInput) != 0; }

  /// The edges of a split node that lead to inputs; none for another node.
  [[nodiscard]] std::vector<std::size_t> parting(const Node& node) const {
    std::vector<std::size_t> to_inputs;
    bool parts = false;
    for (std::size_t i = 0; i < node.next_edges().size(); ++i) {
      const std::uint8_t leads = of(node.next_edge(i));
      if ((leads & kToInput) != 0) to_inputs.push_back(i);
      parts = parts || leads == kToParameter;
    }
    if (!parts) to_inputs.clear();
    return to_inputs;
  }

 private:
  std::unordered_map<Node*, std::uint8_t> leads_;
};

/// Keeps what arrives at a node, and lets it pass.
class Capture final : public torch::autograd::FunctionPreHook {
 public:
  explicit Capture(variable_list& kept) : kept_(kept) {}

  variable_list operator()(const variable_list& gradients) override {
    kept_ = gradients;
    return gradients;
  }

 private:
  variable_list& kept_;
};

/// Frees what a node has kept for its backward, as soon as that has run: the engine itself, asked
/// to keep the graph, would hold all of it until the half ends, and take new memory meanwhile.
class Release final : public torch::autograd::FunctionPostHook {
 public:
  explicit Release(Node& node) : node_(node) {}

  variable_list operator()(const variable_list& gradients,
                           const variable_list& /*given*/) override {
    node_.release_variables();
    return gradients;
  }

 private:
  Node& node_;
};

}  // namespace

variable_list run_backward(const Roots& roots, const edge_list& ends, bool keep_graph) {
  if (roots.edges.empty() || ends.empty()) return variable_list(ends.size());
  return torch::autograd::Engine::get_default_engine().execute(
      roots.edges, roots.gradients, keep_graph, false, false, ends);
}

/// The second half begins at the node, behind all hooks, and goes to parameters alone.
void SplitBackward::keep(Split& split) {
  split.node->pre_hooks().clear();
  for (const std::size_t i : split.to_inputs) split.node->next_edges()[i] = Edge();
  for (std::size_t i = 0; i < split.gradients.size(); ++i)
    if (split.gradients[i].defined())
      begin_.add(Edge(split.node, static_cast<std::uint32_t>(i)), std::move(split.gradients[i]));
}

variable_list SplitBackward::input_gradients(const Roots& roots,
                                             const edge_list& inputs,
                                             const edge_list& parameters) {
  Ways ways(inputs, parameters);
  for (const Edge& root : roots.edges)
    ways.walk(root.function.get(), [&](Node* node) {
      std::vector<std::size_t> to_inputs = ways.parting(*node);
      if (to_inputs.empty()) {
        if (ways.leads_to_input(*node))
          node->post_hooks().push_back(std::make_unique<Release>(*node));
        return;
      }
      auto split = std::make_unique<Split>();
      split->node = node->shared_from_this();
      split->to_inputs = std::move(to_inputs);
      splits_.push_back(std::move(split));
    });
  for (const auto& split : splits_)
    split->node->add_pre_hook(std::make_unique<Capture>(split->gradients));
  Roots to_inputs;
  for (std::size_t i = 0; i < roots.edges.size(); ++i) {
    const std::uint8_t leads = ways.of(roots.edges[i]);
    if ((leads & kToInput) != 0)
      to_inputs.add(roots.edges[i], roots.gradients[i]);
    else if (leads == kToParameter)
      begin_.add(roots.edges[i], roots.gradients[i]);
  }
  variable_list gradients = run_backward(to_inputs, inputs, true);
  for (const auto& split : splits_) keep(*split);
  splits_.clear();
  return gradients;
}

variable_list SplitBackward::parameter_gradients(const edge_list& parameters) {
  const Roots begin = std::exchange(begin_, {});
  return run_backward(begin, parameters, false);
}

}  // namespace millrace::on_torch
