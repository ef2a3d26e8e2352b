// What a module has registered when its stage is made is what training moves: whatever is another
// tensor later is named, and whole numbers beside running means go through a checkpoint.
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/private_directory.hpp"
#include "torch/small_gpt.hpp"
#include "torch/torch_units.hpp"

namespace millrace::testing_torch {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kRegisteredParts = 4;
constexpr double kRows = 12;

TorchLossSum square_sum(const std::vector<torch::Tensor>& outputs,
                        const std::vector<torch::Tensor>& targets) {
  return {(outputs[0] - targets[0]).square().sum(), static_cast<double>(targets[0].size(0))};
}

/// Of three rows each.
TorchUnits rows() {
  torch::manual_seed(3);
  std::vector<TorchUnits::Tensors> inputs, targets;
  for (int i = 0; i < kRegisteredParts; ++i) {
    inputs.push_back({torch::randn({3, 2})});
    targets.push_back({torch::randn({3, 4})});
  }
  return {inputs, targets};
}

Trainer registered_trainer(const torch::nn::Sequential& model, const TrainerOptions& options) {
  return {{generate("zb-h1", {.ranks = 2, .micro_batches = kRegisteredParts})},
          torch_pipeline(model, square_sum, 2),
          options};
}

std::string failure_of_step(Trainer& trainer) {
  TorchUnits data = rows();
  try {
    trainer.step(data, kRows);
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

/// What the second step says when `change` was made to the last layer before it.
std::string failure_after(const std::function<void(torch::nn::LinearImpl&)>& change) {
  torch::manual_seed(2);
  torch::nn::Linear last(4, 4);
  Trainer trainer = registered_trainer(torch::nn::Sequential(torch::nn::Linear(2, 4), last),
                                       {.run = {.executor = "ranks"}});
  EXPECT_EQ(failure_of_step(trainer), "no failure");
  change(*last);
  return failure_of_step(trainer);
}

TEST(TorchRegistered, ParameterThatCameLaterIsNamed) {
  EXPECT_THAT(failure_after([](torch::nn::LinearImpl& layer) {
                layer.register_parameter("gate", torch::ones({4}));
              }),
              HasSubstr("'layers.1.gate' of the module was registered after its stage was made"));
}

TEST(TorchRegistered, ParameterThatWasReplacedIsNamed) {
  EXPECT_THAT(failure_after([](torch::nn::LinearImpl& layer) {
                layer.weight = torch::randn({4, 4}).set_requires_grad(true);
              }),
              HasSubstr("'layers.1.weight' has its shape and was not used: was it replaced?"));
}

TEST(TorchRegistered, ParameterThatWasFrozenLaterIsNamed) {
  EXPECT_THAT(
      failure_after([](torch::nn::LinearImpl& layer) { layer.bias.set_requires_grad(false); }),
      HasSubstr("requires_grad of 'layers.1.bias' was changed"));
}

/// Trains a tensor that nobody knows of.
struct SecretImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x * secret; }

  torch::Tensor secret = torch::ones({4}).set_requires_grad(true);
};
TORCH_MODULE(Secret);

TEST(TorchRegistered, TensorThatNeverWasIsRefused) {
  Trainer trainer =
      registered_trainer(torch::nn::Sequential(torch::nn::Linear(2, 4), Secret()), {});
  EXPECT_THAT(failure_of_step(trainer), HasSubstr("a tensor of shape [4] that is not registered"));
}

torch::nn::Sequential normed() {
  torch::manual_seed(2);
  return torch::nn::Sequential(
      torch::nn::Linear(2, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 4));
}

std::int64_t batches_seen(const torch::nn::Sequential& model) {
  return model->ptr(1)->named_buffers()["num_batches_tracked"].item<std::int64_t>();
}

TEST(TorchRegistered, CountOfBatchesGoesThroughACheckpoint) {
  const PrivateDirectory folder(std::filesystem::temp_directory_path());
  const TrainerOptions options{.run = {.executor = "sequential"},
                               .save = {.folder = folder.path()}};
  const torch::nn::Sequential model = normed();
  Trainer trainer = registered_trainer(model, options);
  EXPECT_EQ(failure_of_step(trainer), "no failure");
  (void)trainer.save();
  EXPECT_EQ(failure_of_step(trainer), "no failure");

  const torch::nn::Sequential later = normed();
  Trainer resumed = registered_trainer(later, {.run = {.executor = "sequential"}});
  EXPECT_EQ(batches_seen(later), 0);
  (void)resumed.resume(folder.path());
  EXPECT_EQ(batches_seen(later), kRegisteredParts);
  EXPECT_EQ(failure_of_step(resumed), "no failure");
  EXPECT_EQ(batches_seen(later), batches_seen(model));
  EXPECT_THAT(differences(*model, *later), IsEmpty());
  EXPECT_EQ(resumed.weights_hash(), trainer.weights_hash());
}

/// Knows where it stands.
struct PlacedImpl : torch::nn::Module {
  explicit PlacedImpl(bool has_means) : places(register_buffer("places", torch::arange(4))) {
    if (!has_means) return;
    register_buffer("mean", torch::zeros({4}));
    register_buffer("mask", torch::ones({4}, torch::kBool));
  }

  torch::Tensor forward(const torch::Tensor& x) { return x + places; }

  torch::Tensor places;
};
TORCH_MODULE(Placed);

TEST(TorchRegistered, IntegerBuffers_StayTheModules) {
  for (const bool has_means : {false, true}) {
    const torch::nn::Sequential model(torch::nn::Linear(2, 4), Placed(has_means));
    Trainer trainer = registered_trainer(model, {});
    const std::vector<std::string> names(trainer.state().names().begin(),
                                         trainer.state().names().end());
    EXPECT_EQ(std::ranges::count(names, "layers.1.places"), has_means ? 1 : 0);
    EXPECT_THAT(names, Not(Contains("layers.1.mask")));
    EXPECT_EQ(failure_of_step(trainer), "no failure");
  }
}

}  // namespace
}  // namespace millrace::testing_torch
