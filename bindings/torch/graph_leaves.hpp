// Tensors that want a gradient of a unit's graph, and that nobody would give one: a module that
// trains something else than it has registered is told so, not trained in part.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include "torch/module_parameters.hpp"

namespace millrace::on_torch {

/// Throws InvalidArgument when the graph behind `roots` ends at a tensor that is neither an input
/// nor a registered parameter, naming the parameter that it stands for as far as shapes tell. Cost:
/// a walk over the graph.
void require_registered_leaves(const torch::autograd::edge_list& roots,
                               const torch::autograd::edge_list& inputs,
                               const ModuleParameters& parameters);

}  // namespace millrace::on_torch
