// A small residual network of PyTorch's layers in three stages: skips inside a stage, and one
// across a stage, which is an edge of the plan. The weights, running means included, have the same
// bits for every schedule.
#include <iostream>
#include <memory>
#include <millrace/millrace.hpp>
#include <millrace/torch/forward.hpp>
#include <string>
#include <torch/torch.h>
#include <vector>

namespace {

using namespace millrace;

constexpr int kWidth = 12;

torch::nn::Conv2d convolution(int from, int to) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1).bias(false));
}

/// relu(x + f(x)): a skip inside a stage.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : first_(register_module("first", convolution(kWidth, kWidth))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(kWidth))),
        second_(register_module("second", convolution(kWidth, kWidth))),
        last_norm_(register_module("last_norm", torch::nn::BatchNorm2d(kWidth))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(x + last_norm_(second_(torch::relu(norm_(first_(x))))));
  }

 private:
  torch::nn::Conv2d first_;
  torch::nn::BatchNorm2d norm_;
  torch::nn::Conv2d second_;
  torch::nn::BatchNorm2d last_norm_;
};
TORCH_MODULE(Block);

/// Images of 8x8, from rows of 64 numbers.
struct BeginImpl : torch::nn::Module {
  BeginImpl()
      : layer_(register_module("layer", convolution(1, kWidth))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(kWidth))),
        block_(register_module("block", Block())) {}

  torch::Tensor forward(const torch::Tensor& rows) {
    return block_(torch::relu(norm_(layer_(rows.view({-1, 1, 8, 8})))));
  }

 private:
  torch::nn::Conv2d layer_;
  torch::nn::BatchNorm2d norm_;
  Block block_;
};
TORCH_MODULE(Begin);

/// From the outputs of stages 1 and 0: the skip across a stage.
struct EndImpl : torch::nn::Module {
  EndImpl()
      : block_(register_module("block", Block())),
        classes_(register_module("classes", torch::nn::Linear(kWidth, 10))) {}

  torch::Tensor forward(const torch::Tensor& near, const torch::Tensor& far) {
    return classes_(block_(near + far).amax({2, 3}));
  }

 private:
  Block block_;
  torch::nn::Linear classes_;
};
TORCH_MODULE(End);

TorchLossSum cross_entropy(const std::vector<torch::Tensor>& outputs,
                           const std::vector<torch::Tensor>& targets) {
  const auto labels = targets[0].to(torch::kLong);
  const auto right = (outputs[0].argmax(1) == labels).sum().item<std::int64_t>();
  const auto sum = torch::cross_entropy_loss(outputs[0], labels, {}, at::Reduction::Sum);
  return {sum, static_cast<double>(labels.numel()), right, labels.numel()};
}

/// Trains by a schedule: the weights' hash.
std::string train(const TrainTest& data, const std::string& schedule, bool recompute) {
  torch::manual_seed(1);
  std::vector<std::unique_ptr<StageBody>> stages;
  // Two later stages use the output of this one.
  stages.push_back(
      make_torch_stage(Begin(), {.first = true, .prefix = "begin.", .output_uses = {2}}));
  stages.push_back(make_torch_stage(Block(), {.prefix = "middle."}));
  stages.push_back(make_torch_stage(End(), {.loss = cross_entropy, .prefix = "end."}));

  Program program = generate(schedule, {.ranks = 3, .micro_batches = 4});
  // From stage, output; to stage, input.
  program.shape.edges = {
      {Stage{0}, 0, Stage{1}, 0}, {Stage{1}, 0, Stage{2}, 0}, {Stage{0}, 0, Stage{2}, 1}};
  if (recompute) program = insert_recompute(program);
  Trainer trainer(
      {program},
      std::move(stages),
      {.step = {.learning_rate = {.base = 3e-3}}, .fit = {.batch_size = 64, .epochs = 4}});
  trainer.fit(data.train);
  const double accuracy = trainer.evaluate(data.test).accuracy();
  std::cout << schedule << (recompute ? " with recompute: " : ": ")
            << (accuracy > 0.93 ? "trained\n" : "not trained\n");
  return trainer.weights_hash();
}

}  // namespace

int main() {
  const TrainTest data = load_data("digits", 1);
  const std::string one = train(data, "1f1b", false);
  const std::string split = train(data, "zb-h1", false);
  const std::string again = train(data, "gpipe", true);
  std::cout << (one == split && one == again ? "the same weights\n" : "other weights\n");
}
