// A GPT of PyTorch's layers trains on a text with one rank and with two, by a schedule that splits
// the backward pass: the same weights, bit for bit.
#include <iostream>
#include <millrace/millrace.hpp>
#include <millrace/torch/dropout.hpp>
#include <millrace/torch/pipeline.hpp>
#include <string>
#include <torch/torch.h>
#include <vector>

namespace {

using namespace millrace;

constexpr int kContext = 32;
constexpr int kWidth = 32;
constexpr int kHeads = 4;

/// Characters and their positions.
struct EmbedImpl : torch::nn::Module {
  explicit EmbedImpl(int characters)
      : characters_(register_module("characters", torch::nn::Embedding(characters, kWidth))),
        places_(register_module("places", torch::nn::Embedding(kContext, kWidth))) {}

  torch::Tensor forward(const torch::Tensor& tokens) {
    return characters_(tokens) + places_(torch::arange(tokens.size(1)));
  }

 private:
  torch::nn::Embedding characters_, places_;
};
TORCH_MODULE(Embed);

/// x + attention(norm(x)), then x + perceptron(norm(x)).
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::uint32_t number)
      : before_(register_module("before", norm())),
        mix_(register_module("mix", torch::nn::Linear(kWidth, 3 * kWidth))),
        out_(register_module("out", torch::nn::Linear(kWidth, kWidth))),
        between_(register_module("between", norm())),
        wide_(register_module("wide", torch::nn::Linear(kWidth, 4 * kWidth))),
        narrow_(register_module("narrow", torch::nn::Linear(4 * kWidth, kWidth))),
        dropout_(register_module("dropout", TorchDropout(0.1, number))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + out_(attention(before_(x)));
    return y + dropout_(narrow_(torch::gelu(wide_(between_(y)))));
  }

 private:
  static torch::nn::LayerNorm norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
  }

  torch::Tensor attention(const torch::Tensor& x) {
    const auto heads = [&](const torch::Tensor& part) {
      return part.view({x.size(0), x.size(1), kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const std::vector<torch::Tensor> parts = mix_(x).chunk(3, -1);
    const auto scores = heads(parts[0]).matmul(heads(parts[1]).transpose(-2, -1)) * 0.35;
    const auto future = torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1);
    const auto seen = scores.masked_fill(future, -1e9).softmax(-1);
    return seen.matmul(heads(parts[2])).transpose(1, 2).reshape(x.sizes());
  }

  torch::nn::LayerNorm before_;
  torch::nn::Linear mix_, out_;
  torch::nn::LayerNorm between_;
  torch::nn::Linear wide_, narrow_;
  TorchDropout dropout_;
};
TORCH_MODULE(Block);

/// A loss per character.
TorchLossSum next_character(const std::vector<torch::Tensor>& outputs,
                            const std::vector<torch::Tensor>& targets) {
  const auto next = targets[0].flatten().to(torch::kLong);
  const auto sum =
      torch::cross_entropy_loss(outputs[0].flatten(0, 1), next, {}, at::Reduction::Sum);
  return {sum, static_cast<double>(next.numel())};
}

/// Trains by a schedule on `ranks` ranks and prints whether the loss fell; returns the hash.
std::string train(const Dataset& text, const std::string& schedule, int ranks) {
  torch::manual_seed(1);
  const auto characters = static_cast<int>(text.classes);
  const torch::nn::Sequential model(
      Embed(characters), Block(1), Block(2), torch::nn::Linear(kWidth, characters));
  Trainer trainer({generate(schedule, {.ranks = ranks, .micro_batches = 4})},
                  torch_pipeline(model, next_character, ranks),
                  {.step = {.learning_rate = {.base = 3e-3}}, .fit = {.batch_size = 16}});
  Loader loader(text, trainer.loader_options());
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    Batch& batch = loader.next();
    last = trainer.step(batch, static_cast<double>(batch.positions())).mean_loss();
    if (step == 0) first = last;
  }
  std::cout << schedule << " on " << ranks << (ranks == 1 ? " rank: " : " ranks: ")
            << (last < first - 0.7 ? "the loss falls\n" : "the loss does not fall\n");
  return trainer.weights_hash();
}

}  // namespace

int main() {
  const Dataset text = load_data("text", /*seed=*/1, kContext).train;
  const std::string one = train(text, "1f1b", 1);
  const std::string two = train(text, "zb-h1", 2);
  std::cout << (one == two ? "the same weights\n" : "other weights\n");
}
