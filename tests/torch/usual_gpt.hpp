// The transformer that everybody builds of torch::nn, with the layers of millrace's own `gpt:` and
// of bench/against_pytorch: what is compared with both.
#pragma once

#include <cmath>
#include <cstdint>
#include <torch/torch.h>
#include <vector>

#include "millrace/torch/stage.hpp"

namespace millrace::testing_torch {

struct GptSizes {
  std::int64_t words = 0, columns = 0, heads = 0, length = 0;
  int blocks = 0;
};

struct FrontImpl : torch::nn::Module {
  explicit FrontImpl(const GptSizes& sizes)
      : words_(register_module("words", torch::nn::Embedding(sizes.words, sizes.columns))),
        places_(register_module("places", torch::nn::Embedding(sizes.length, sizes.columns))) {}

  torch::Tensor forward(const torch::Tensor& tokens) {
    return words_(tokens) + places_->weight.slice(0, 0, tokens.size(1));
  }

 private:
  torch::nn::Embedding words_, places_;
};
TORCH_MODULE(Front);

inline torch::nn::LayerNorm norm_of(std::int64_t columns) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({columns}));
}

struct HeadsBlockImpl : torch::nn::Module {
  explicit HeadsBlockImpl(const GptSizes& sizes)
      : heads_(sizes.heads),
        before_(register_module("before", norm_of(sizes.columns))),
        mix_(register_module("mix", torch::nn::Linear(sizes.columns, 3 * sizes.columns))),
        out_(register_module("out", torch::nn::Linear(sizes.columns, sizes.columns))),
        between_(register_module("between", norm_of(sizes.columns))),
        wide_(register_module("wide", torch::nn::Linear(sizes.columns, 4 * sizes.columns))),
        narrow_(register_module("narrow", torch::nn::Linear(4 * sizes.columns, sizes.columns))),
        future_(torch::ones({sizes.length, sizes.length}, torch::kBool).triu(1)) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + out_(attention(before_(x)));
    return y + narrow_(torch::gelu(wide_(between_(y)), "tanh"));
  }

 private:
  torch::Tensor attention(const torch::Tensor& x) {
    const std::int64_t width = x.size(2) / heads_;
    const auto parts =
        mix_(x).view({x.size(0), x.size(1), 3, heads_, width}).permute({2, 0, 3, 1, 4});
    const auto scores =
        parts[0].matmul(parts[1].transpose(2, 3)) / std::sqrt(static_cast<double>(width));
    const auto future = future_.slice(0, 0, x.size(1)).slice(1, 0, x.size(1));
    const auto seen = scores.masked_fill(future, -INFINITY).softmax(-1);
    return seen.matmul(parts[2]).transpose(1, 2).reshape(x.sizes());
  }

  std::int64_t heads_;
  torch::nn::LayerNorm before_;
  torch::nn::Linear mix_, out_;
  torch::nn::LayerNorm between_;
  torch::nn::Linear wide_, narrow_;
  torch::Tensor future_;
};
TORCH_MODULE(HeadsBlock);

/// The embeddings, the blocks, a norm, and a head without bias.
inline torch::nn::Sequential usual_gpt(const GptSizes& sizes) {
  torch::nn::Sequential model{Front(sizes)};
  for (int i = 0; i < sizes.blocks; ++i) model->push_back(HeadsBlock(sizes));
  model->push_back(norm_of(sizes.columns));
  model->push_back(
      torch::nn::Linear(torch::nn::LinearOptions(sizes.columns, sizes.words).bias(false)));
  return model;
}

/// A loss per word, of targets of any whole number.
inline TorchLossSum loss_of_words(const std::vector<torch::Tensor>& outputs,
                                  const std::vector<torch::Tensor>& targets) {
  const auto next = targets[0].flatten().to(torch::kLong);
  const auto sum =
      torch::cross_entropy_loss(outputs[0].flatten(0, 1), next, {}, at::Reduction::Sum);
  return {sum, static_cast<double>(next.numel())};
}

}  // namespace millrace::testing_torch
