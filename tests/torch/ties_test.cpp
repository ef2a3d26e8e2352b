// One weight in two stages: each has a tensor of its own, tied by name, and the bits are those of
// plain autograd; a tensor that two stages would share is refused with what to write instead.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/small_gpt.hpp"

namespace millrace::testing_torch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kTiedSteps = 4;
constexpr int kTiedParts = 12;
const char* const kEmbedding = "layers.0.words.weight";
const char* const kHead = "layers.7.weight";

/// Gives a number for every word, by the words' own vectors.
struct HeadImpl : torch::nn::Module {
  HeadImpl(const torch::Tensor& vectors, bool own)
      : weight(own ? register_parameter("weight", vectors) : vectors) {}

  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight); }

  torch::Tensor weight;
};
TORCH_MODULE(Head);

enum class Vectors : std::uint8_t {
  Shared,     ///< the embedding's tensor, which the head does not register
  SharedOwn,  ///< the same, registered by both
  Apart,      ///< another tensor, with other numbers
};

torch::nn::Sequential tied_gpt(Vectors vectors) {
  torch::manual_seed(7);
  const Embed embed;
  torch::nn::Sequential model{embed};
  for (int i = 0; i < 6; ++i) model->push_back(Block());
  const torch::Tensor other = torch::randn({kWords, kWidth});
  const bool shares = vectors != Vectors::Apart;
  model->push_back(Head(shares ? embed->words->weight : other, vectors != Vectors::Shared));
  return model;
}

torch::Tensor parameter(const torch::nn::Sequential& model, int layer, const char* name) {
  return model->ptr(static_cast<std::size_t>(layer))->named_parameters()[name];
}

/// One module that has the tensor twice, by plain autograd.
torch::nn::Sequential train_shared(const Sentences& data) {
  torch::nn::Sequential model = tied_gpt(Vectors::Shared);
  train_plainly(model, data, kTiedSteps);
  return model;
}

/// The gradients of both uses accumulate apart and are added once, in the order of the layers.
torch::nn::Sequential train_apart(const Sentences& data) {
  at::set_num_threads(1);
  torch::nn::Sequential model = tied_gpt(Vectors::Apart);
  torch::Tensor words = parameter(model, 0, "words.weight"), head = parameter(model, 7, "weight");
  {
    const torch::NoGradGuard plain;
    head.copy_(words);
  }
  PlainUpdates updates(*model);
  for (int step = 1; step <= kTiedSteps; ++step) {
    updates.zero();
    for (std::size_t i = 0; i < data.tokens().size(); ++i)
      next_word_loss({model->forward(data.tokens()[i])}, {data.next()[i]})
          .sum.backward(torch::full({}, 1.0 / data.total_weight()));
    words.mutable_grad().add_(head.grad());
    head.mutable_grad().copy_(words.grad());
    updates.update(step);
  }
  return model;
}

torch::nn::Sequential train_tied(Sentences& data, const std::string& schedule, int ranks) {
  const torch::nn::Sequential model = tied_gpt(Vectors::Apart);
  const auto parts = static_cast<int>(data.tokens().size());
  const Program program = generate(schedule, {.ranks = ranks, .micro_batches = parts});
  TrainerOptions options{.step = {.tied = {{kEmbedding, kHead}}}, .run = {.executor = "ranks"}};
  options.step.learning_rate.base = kLearningRate;
  Trainer trainer(
      {program}, torch_pipeline(model, next_word_loss, program.shape.stages()), options);
  for (int step = 0; step < kTiedSteps; ++step) trainer.step(data, data.total_weight());
  return model;
}

TEST(TorchTies, EmbeddingAndHead_HaveSharedTensorBits) {
  Sentences data(1);
  const torch::nn::Sequential shared = train_shared(data);
  const torch::nn::Sequential tied = train_tied(data, "1f1b", 2);

  for (const auto& each : shared->named_parameters())
    EXPECT_TRUE(torch::equal(each.value(), tied->named_parameters()[each.key()])) << each.key();
  EXPECT_TRUE(torch::equal(parameter(tied, 7, "weight"), parameter(tied, 0, "words.weight")));
}

TEST(TorchTies, AccumulateApart_AddedOnce) {
  Sentences data(kTiedParts);
  const torch::nn::Sequential apart = train_apart(data);
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-v"})
    for (const int ranks : {1, 2, 4})
      EXPECT_THAT(differences(*apart, *train_tied(data, schedule, ranks)), IsEmpty())
          << schedule << " on " << ranks;
  // Only the order of the additions is another one than where a module shares the tensor.
  EXPECT_TRUE(torch::allclose(parameter(apart, 0, "words.weight"),
                              parameter(train_shared(data), 0, "words.weight"),
                              1e-4,
                              1e-5));
}

TEST(TorchTies, SharedTensor_IsRejectedWithAdvice) {
  const torch::nn::Sequential model = tied_gpt(Vectors::SharedOwn);
  try {
    (void)torch_pipeline(model, next_word_loss, 2);
    FAIL() << "nothing was refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                HasSubstr(R"(.tied = {{"layers.0.words.weight", "layers.7.weight"}})"));
  }
}

}  // namespace
}  // namespace millrace::testing_torch
