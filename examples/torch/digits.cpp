// A model of PyTorch's layers trains on the digits with a pipeline of two ranks.
#include <iostream>
#include <millrace/millrace.hpp>
#include <millrace/torch/pipeline.hpp>
#include <torch/torch.h>

using namespace millrace;

TorchLossSum cross_entropy(const std::vector<torch::Tensor>& outputs,
                           const std::vector<torch::Tensor>& targets) {
  const auto labels = targets[0].to(torch::kLong);
  const auto right = (outputs[0].argmax(1) == labels).sum().item<std::int64_t>();
  const auto sum = torch::cross_entropy_loss(outputs[0], labels, {}, at::Reduction::Sum);
  return {sum, static_cast<double>(labels.numel()), right, labels.numel()};
}

int main() {
  torch::manual_seed(1);
  const torch::nn::Sequential model(
      torch::nn::Linear(64, 96), torch::nn::ReLU(), torch::nn::Linear(96, 10));
  const TrainTest data = load_data("digits", 1);
  const Program program = generate("zb-h1", {.ranks = 2, .micro_batches = 8});
  Trainer trainer({program}, torch_pipeline(model, cross_entropy, 2), {.fit = {.epochs = 40}});
  trainer.fit(data.train);  // model holds the trained weights
  std::cout << (trainer.evaluate(data.test).accuracy() > 0.95 ? "trained\n" : "not trained\n");
}
