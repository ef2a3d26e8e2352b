// A small residual network of torch::nn's own layers, with batch norms that keep running means, and
// made-up images for it.
#pragma once

#include <cstdint>
#include <torch/torch.h>
#include <utility>
#include <vector>

#include "millrace/torch/stage.hpp"
#include "torch/torch_units.hpp"

namespace millrace::testing_torch {

inline constexpr int kClasses = 5;
inline constexpr int kSide = 8;

inline torch::nn::Conv2d convolution(int from, int to, int size, int stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false));
}

struct StemImpl : torch::nn::Module {
  StemImpl()
      : layer(register_module("layer", convolution(1, 4, 3, 1))),
        norm(register_module("norm", torch::nn::BatchNorm2d(4))) {}

  torch::Tensor forward(const torch::Tensor& x) { return torch::relu(norm(layer(x))); }

  torch::nn::Conv2d layer;
  torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(Stem);

/// relu(f(x) + shortcut(x)), with f of two convolutions.
struct ResidualImpl : torch::nn::Module {
  ResidualImpl(int from, int to, int stride)
      : first(register_module("first", convolution(from, to, 3, stride))),
        norm(register_module("norm", torch::nn::BatchNorm2d(to))),
        second(register_module("second", convolution(to, to, 3, 1))),
        last_norm(register_module("last_norm", torch::nn::BatchNorm2d(to))) {
    if (from != to) shortcut = register_module("shortcut", convolution(from, to, 1, stride));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor inside = last_norm(second(torch::relu(norm(first(x)))));
    return torch::relu(inside + (shortcut ? shortcut(x) : x));
  }

  torch::nn::Conv2d first;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d second;
  torch::nn::BatchNorm2d last_norm;
  torch::nn::Conv2d shortcut = nullptr;
};
TORCH_MODULE(Residual);

struct ClassifyImpl : torch::nn::Module {
  ClassifyImpl() : layer(register_module("layer", torch::nn::Linear(8, kClasses))) {}

  torch::Tensor forward(const torch::Tensor& x) { return layer(x.mean({2, 3})); }

  torch::nn::Linear layer;
};
TORCH_MODULE(Classify);

/// Eight modules, the same numbers every time.
inline torch::nn::Sequential small_resnet() {
  torch::manual_seed(9);
  return torch::nn::Sequential(Stem(),
                               Residual(4, 4, 1),
                               Residual(4, 4, 1),
                               Residual(4, 8, 2),
                               Residual(8, 8, 1),
                               Residual(8, 8, 1),
                               Residual(8, 8, 1),
                               Classify());
}

inline TorchLossSum class_loss(const std::vector<torch::Tensor>& outputs,
                               const std::vector<torch::Tensor>& targets) {
  const auto sum = torch::cross_entropy_loss(outputs[0], targets[0], {}, at::Reduction::Sum);
  return {sum, static_cast<double>(targets[0].size(0))};
}

/// Of each micro-batch 3, 1, 2, 3, 1, ... images and their classes.
inline std::pair<std::vector<TorchUnits::Tensors>, std::vector<TorchUnits::Tensors>> images(
    int micro_batches) {
  torch::manual_seed(10);
  std::vector<TorchUnits::Tensors> inputs, targets;
  for (int i = 0; i < micro_batches; ++i) {
    const std::int64_t rows = i % 3 == 0 ? 3 : i % 3;
    inputs.push_back({torch::randn({rows, 1, kSide, kSide})});
    targets.push_back({torch::randint(kClasses, {rows}, torch::kLong)});
  }
  return {std::move(inputs), std::move(targets)};
}

}  // namespace millrace::testing_torch
