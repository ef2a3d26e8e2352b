// How long each module of a list takes, for a cut by time.
#pragma once

#include <torch/nn/modules/container/any.h>
#include <vector>

#include "millrace/torch/pipeline.hpp"

namespace millrace::on_torch {

/// One module, or several in a row, as the forward of a stage; the first of a model takes what the
/// data give.
[[nodiscard]] TorchForward chain_of(std::vector<torch::nn::AnyModule> modules, bool first);

/// Seconds of forward and backward of each module over one unit, as a stage of its own: medians.
/// The modules' buffers and PyTorch's generator are afterwards as they were. Throws what a step
/// would.
[[nodiscard]] std::vector<double> module_seconds(const std::vector<torch::nn::AnyModule>& modules,
                                                 const TorchLoss& loss,
                                                 const CutByTime& sample,
                                                 const TorchPipelineOptions& options);

}  // namespace millrace::on_torch
