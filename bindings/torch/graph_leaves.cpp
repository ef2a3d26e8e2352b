#include "torch/graph_leaves.hpp"

#include <ATen/ATen.h>
#include <sstream>
#include <string>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <unordered_set>
#include <vector>

#include "millrace/core/error.hpp"

namespace millrace::on_torch {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

/// All nodes behind the roots.
std::unordered_set<Node*> nodes_behind(const edge_list& roots) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> to_see;
  const auto visit = [&](const edge_list& edges) {
    for (const Edge& edge : edges)
      if (edge.is_valid() && seen.insert(edge.function.get()).second)
        to_see.push_back(edge.function.get());
  };
  visit(roots);
  while (!to_see.empty()) {
    const Node* node = to_see.back();
    to_see.pop_back();
    visit(node->next_edges());
  }
  return seen;
}

std::string sentence(const at::Tensor& stranger, const std::string& unused) {
  std::ostringstream text;
  text << "the module trains a tensor of shape " << stranger.sizes()
       << " that is not registered with it, so nothing would move it";
  if (!unused.empty())
    text << "; '" << unused << "' has its shape and was not used: was it replaced? Copy into a "
         << "registered tensor (copy_ under NoGradGuard), do not assign another one";
  else
    text << "; register it (register_parameter) before the stage is made";
  return text.str();
}

}  // namespace

void require_registered_leaves(const edge_list& roots,
                               const edge_list& inputs,
                               const ModuleParameters& parameters) {
  const std::unordered_set<Node*> graph = nodes_behind(roots);
  std::unordered_set<const Node*> known;
  for (const edge_list* list : {&inputs, &parameters.ends()})
    for (const Edge& edge : *list) known.insert(edge.function.get());
  for (Node* node : graph) {
    const auto* leaf = dynamic_cast<const AccumulateGrad*>(node);
    if (leaf == nullptr || known.contains(node)) continue;
    throw InvalidArgument(sentence(leaf->variable, parameters.unused_like(leaf->variable, graph)));
  }
}

}  // namespace millrace::on_torch
