// A GPT of torch::nn's own layers, small enough for every schedule, and a plain loop that trains it
// in one thread: what pipelines are compared with.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <torch/torch.h>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/torch/forward.hpp"
#include "millrace/torch/pipeline.hpp"
#include "millrace/training/optimizer.hpp"

namespace millrace::testing_torch {

inline constexpr int kPositions = 6;
inline constexpr int kWords = 11;
inline constexpr int kWidth = 16;
inline constexpr double kLearningRate = 1e-2;

/// Words and where they stand.
struct EmbedImpl : torch::nn::Module {
  EmbedImpl()
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        places(register_parameter("places", 0.1 * torch::randn({kPositions, kWidth}))) {}

  torch::Tensor forward(const torch::Tensor& tokens) { return words(tokens) + places; }

  torch::nn::Embedding words;
  torch::Tensor places;
};
TORCH_MODULE(Embed);

/// Causal attention and a perceptron, each behind a layer norm and beside a skip.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : before(register_module("before", norm())),
        mix(register_module("mix", torch::nn::Linear(kWidth, 3 * kWidth))),
        out(register_module("out", torch::nn::Linear(kWidth, kWidth))),
        between(register_module("between", norm())),
        wide(register_module("wide", torch::nn::Linear(kWidth, 2 * kWidth))),
        narrow(register_module("narrow", torch::nn::Linear(2 * kWidth, kWidth))) {}

  static torch::nn::LayerNorm norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
  }

  torch::Tensor forward(torch::Tensor x) {
    const std::vector<torch::Tensor> parts = mix(before(x)).chunk(3, -1);
    const auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) / 4.0;
    const auto future = torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1);
    const auto seen = torch::softmax(scores.masked_fill(future, -1e9), -1);
    x = x + out(torch::matmul(seen, parts[2]));
    return x + narrow(torch::gelu(wide(between(x))));
  }

  torch::nn::LayerNorm before;
  torch::nn::Linear mix, out;
  torch::nn::LayerNorm between;
  torch::nn::Linear wide, narrow;
};
TORCH_MODULE(Block);

/// Eight modules, the same numbers every time.
inline torch::nn::Sequential small_gpt() {
  torch::manual_seed(7);
  torch::nn::Sequential model{Embed()};
  for (int i = 0; i < 6; ++i) model->push_back(Block());
  model->push_back(torch::nn::Linear(kWidth, kWords));
  return model;
}

inline TorchLossSum next_word_loss(const std::vector<torch::Tensor>& outputs,
                                   const std::vector<torch::Tensor>& targets) {
  const auto sum = torch::nn::functional::cross_entropy(
      outputs[0].flatten(0, 1),
      targets[0].flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  return {sum, static_cast<double>(targets[0].numel())};
}

/// Micro-batches of 3, 1, 2, 3, 1, ... sequences of made-up words.
class Sentences final : public StepData {
 public:
  explicit Sentences(int micro_batches) {
    const std::vector<std::int64_t> rows{3, 1, 2};
    for (int i = 0; i < micro_batches; ++i) {
      const std::int64_t samples = rows[static_cast<std::size_t>(i) % rows.size()];
      const auto text = torch::arange(samples * (kPositions + 1) + i, torch::kLong)
                            .slice(0, i)
                            .square()
                            .remainder(kWords)
                            .reshape({samples, kPositions + 1});
      tokens_.push_back(text.slice(1, 0, kPositions).contiguous());
      next_.push_back(text.slice(1, 1).contiguous());
      first_.push_back(total_ / kPositions);
      total_ += samples * kPositions;
    }
  }

  [[nodiscard]] double total_weight() const { return static_cast<double>(total_); }
  [[nodiscard]] const std::vector<torch::Tensor>& tokens() const { return tokens_; }
  [[nodiscard]] const std::vector<torch::Tensor>& next() const { return next_; }

  TensorList inputs(const Unit& unit) override { return list(tokens_[unit.micro_batch.index()]); }
  TensorList targets(const Unit& unit) override { return list(next_[unit.micro_batch.index()]); }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return first_[unit.micro_batch.index()];
  }

 private:
  static TensorList list(torch::Tensor& tensor) {
    return TensorList(Tensor(DType::I64,
                             Dims(std::span<const std::int64_t>(tensor.sizes().data(), 2)),
                             tensor.data_ptr(),
                             nullptr,
                             nullptr));
  }

  std::vector<torch::Tensor> tokens_, next_;
  std::vector<std::int64_t> first_;
  std::int64_t total_ = 0;
};

/// A module's parameters, moved by an optimizer of millrace's.
class PlainUpdates {
 public:
  explicit PlainUpdates(torch::nn::Module& module)
      : parameters_(module.parameters()), rule_(make_optimizer(OptimizerOptions{})) {
    for (const torch::Tensor& parameter : parameters_)
      moments_.push_back({std::vector<float>(static_cast<std::size_t>(parameter.numel())),
                          std::vector<float>(static_cast<std::size_t>(parameter.numel()))});
  }

  void zero() {
    for (torch::Tensor& parameter : parameters_)
      parameter.mutable_grad() = torch::zeros_like(parameter);
  }

  void update(int number) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto count = static_cast<std::size_t>(parameters_[i].numel());
      UpdateSettings settings{.number = number, .learning_rate = kLearningRate};
      settings.decays = parameters_[i].dim() > 1;
      const std::vector<std::span<float>> state{moments_[i][0], moments_[i][1]};
      apply(*rule_,
            settings,
            {parameters_[i].data_ptr<float>(), count},
            {parameters_[i].grad().data_ptr<float>(), count},
            state);
    }
  }

 private:
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<const Optimizer> rule_;
  std::vector<std::vector<std::vector<float>>> moments_;
};

/// Trains `model` by plain autograd: micro-batch after micro-batch, one thread, gradients zero at
/// the beginning of each step.
inline void train_plainly(torch::nn::Sequential& model, const Sentences& data, int steps) {
  at::set_num_threads(1);
  PlainUpdates updates(*model);
  for (int step = 1; step <= steps; ++step) {
    updates.zero();
    for (std::size_t i = 0; i < data.tokens().size(); ++i) {
      const auto loss = next_word_loss({model->forward(data.tokens()[i])}, {data.next()[i]});
      loss.sum.backward(torch::full({}, 1.0 / data.total_weight()));
    }
    updates.update(step);
  }
}

/// Names of the parameters that differ in any bit; empty when none does.
inline std::vector<std::string> differences(const torch::nn::Module& one,
                                            const torch::nn::Module& other) {
  std::vector<std::string> names;
  const auto others = other.named_parameters();
  for (const auto& each : one.named_parameters()) {
    const torch::Tensor& twin = others[each.key()];
    if (each.value().nbytes() != twin.nbytes() ||
        std::memcmp(each.value().data_ptr(), twin.data_ptr(), twin.nbytes()) != 0)
      names.push_back(each.key());
  }
  return names;
}

}  // namespace millrace::testing_torch
