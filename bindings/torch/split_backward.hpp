// A unit's backward pass, whole or in two halves that share nothing but what they must: first the
// gradients of inputs, later those of parameters.
#pragma once

#include <memory>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <utility>
#include <vector>

namespace millrace::on_torch {

/// Where a backward pass begins: edges of the graph, and the gradient that enters each.
struct Roots {
  torch::autograd::edge_list edges;
  torch::autograd::variable_list gradients;

  void add(torch::autograd::Edge edge, at::Tensor gradient) {
    edges.push_back(std::move(edge));
    gradients.push_back(std::move(gradient));
  }
};

/// The gradients that `ends` collect, undefined where nothing reaches them. Runs on the calling
/// thread. Frees the graph unless it is kept.
[[nodiscard]] torch::autograd::variable_list run_backward(const Roots& roots,
                                                          const torch::autograd::edge_list& ends,
                                                          bool keep_graph);

/// The same in two calls. `input_gradients` runs what leads to inputs, and keeps the gradients that
/// arrive at split nodes: those of which one edge leads to an input and another one to parameters
/// alone. It then cuts the former edges, so that what only inputs needed is freed, and
/// `parameter_gradients` begins at all split nodes at once, none of which sees another one.
/// Thread-safety: externally synchronised.
class SplitBackward {
 public:
  /// Gradients of `inputs`. The graph belongs to this pass alone.
  [[nodiscard]] torch::autograd::variable_list input_gradients(
      const Roots& roots,
      const torch::autograd::edge_list& inputs,
      const torch::autograd::edge_list& parameters);

  /// Gradients of `parameters`, afterwards. Frees the graph.
  [[nodiscard]] torch::autograd::variable_list parameter_gradients(
      const torch::autograd::edge_list& parameters);

 private:
  struct Split {
    std::shared_ptr<torch::autograd::Node> node;
    std::vector<std::size_t> to_inputs;  // its edges that lead there
    torch::autograd::variable_list gradients;
  };

  void keep(Split& split);

  std::vector<std::unique_ptr<Split>> splits_;  // hooks point to them
  Roots begin_;                                 // of the second half
};

}  // namespace millrace::on_torch
