// torch_steps SCHEDULE STEPS SAVES [RESUMES]: the Sequential of examples/torch/digits takes STEPS
// steps over made-up data, continues from the checkpoint in the folder RESUMES if it is given,
// leaves one in SAVES, and prints the hash of its weights: what a Python program does with the same
// model.
#include <iostream>
#include <torch/torch.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/torch/pipeline.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/torch_units.hpp"

namespace {

using namespace millrace;

constexpr int kMicroBatches = 4;

TorchLossSum cross_entropy(const std::vector<torch::Tensor>& outputs,
                           const std::vector<torch::Tensor>& targets) {
  const auto sum = torch::cross_entropy_loss(outputs[0], targets[0], {}, at::Reduction::Sum);
  return {sum, static_cast<double>(targets[0].numel())};
}

/// 13 samples.
testing_torch::TorchUnits made_up() {
  const auto inputs = (torch::arange(13 * 64, torch::kFloat).remainder(17) - 8) / 8;
  const auto labels = torch::arange(13, torch::kLong).remainder(10);
  std::vector<testing_torch::TorchUnits::Tensors> rows, wanted;
  for (const torch::Tensor& part : inputs.reshape({13, 64}).tensor_split(kMicroBatches))
    rows.push_back({part.contiguous()});
  for (const torch::Tensor& part : labels.tensor_split(kMicroBatches))
    wanted.push_back({part.contiguous()});
  return {std::move(rows), std::move(wanted)};
}

/// Numbers that are the same in every language.
void fill(const torch::nn::Sequential& model) {
  const torch::NoGradGuard plain;
  for (torch::Tensor& parameter : model->parameters())
    parameter.copy_(((torch::arange(parameter.numel(), torch::kFloat) * 7).remainder(23) - 11)
                        .div(64)
                        .reshape(parameter.sizes()));
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> arguments(words + 1, words + count);
  const torch::nn::Sequential model(
      torch::nn::Linear(64, 96), torch::nn::ReLU(), torch::nn::Linear(96, 10));
  fill(model);
  const Program program = generate(arguments.at(0), {.ranks = 2, .micro_batches = kMicroBatches});
  TrainerOptions options{.run = {.executor = "sequential"}};
  options.step.learning_rate.base = 0.01;
  options.save.folder = arguments.at(2);
  Trainer trainer({program}, torch_pipeline(model, cross_entropy, 2), options);
  if (arguments.size() > 3) (void)trainer.resume(arguments[3]);
  testing_torch::TorchUnits data = made_up();
  for (int step = 0; step < std::stoi(arguments.at(1)); ++step) trainer.step(data, 13);
  (void)trainer.save();
  std::cout << trainer.weights_hash() << "\n";
}
