// A loss over tokens says what it will weigh before it runs: a ragged mini-batch is divided by its
// tokens, padding left out, and has the bits of plain autograd.
#include <cstring>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/loader.hpp"
#include "millrace/training/trainer.hpp"
#include "tests/training/uneven_lines.hpp"
#include "torch/small_gpt.hpp"

namespace millrace::testing_torch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing_training::first_rows;
using testing_training::lines;

constexpr int kRaggedParts = 4;
constexpr int kDocuments = 10;
constexpr int kRaggedSteps = 3;

double tokens_in(const std::vector<torch::Tensor>& targets) {
  return targets[1].sum().item<double>();
}

TorchLossSum token_loss(const std::vector<torch::Tensor>& outputs,
                        const std::vector<torch::Tensor>& targets) {
  const auto each = torch::cross_entropy_loss(
      outputs[0].flatten(0, 1), targets[0].flatten().to(torch::kLong), {}, at::Reduction::None);
  return {(each * targets[1].flatten()).sum(), tokens_in(targets)};
}

torch::nn::Sequential reader(std::int64_t characters) {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Embedding(characters, 12),
                               torch::nn::Linear(12, 12),
                               torch::nn::GELU(),
                               torch::nn::Linear(12, characters));
}

torch::Tensor copied(const Tensor& tensor) {
  const auto type = tensor.dtype() == DType::F32 ? torch::kFloat : torch::kInt;
  torch::Tensor copy =
      torch::empty({tensor.dims()[0], tensor.dims()[1]}, torch::TensorOptions(type));
  std::memcpy(copy.data_ptr(), tensor.data(), tensor.bytes());
  return copy;
}

void train_plainly(torch::nn::Sequential& model, Batch& batch, double tokens) {
  at::set_num_threads(1);
  PlainUpdates updates(*model);
  for (int step = 1; step <= kRaggedSteps; ++step) {
    updates.zero();
    for (int i = 0; i < kRaggedParts; ++i) {
      const Unit unit{MicroBatch{i}, Slice{0}};
      const TensorList targets = batch.targets(unit);
      token_loss({model->forward(copied(batch.inputs(unit)[0]))},
                 {copied(targets[0]), copied(targets[1])})
          .sum.backward(torch::full({}, 1.0 / tokens));
    }
    updates.update(step);
  }
}

/// The rows' lengths, which are what counts.
double tokens_of(Batch& batch) {
  double tokens = 0;
  for (int i = 0; i < kRaggedParts; ++i)
    for (const float weight : batch.targets({MicroBatch{i}, Slice{0}})[1].as<float>())
      tokens += weight;
  return tokens;
}

Trainer ragged_trainer(const torch::nn::Sequential& model,
                       const std::string& schedule,
                       const TorchLossWeight& weight) {
  TrainerOptions options{.run = {.executor = "ranks"}};
  options.step.learning_rate.base = kLearningRate;
  return {Plan{generate(schedule, {.ranks = 2, .micro_batches = kRaggedParts})},
          torch_pipeline(model, token_loss, 2, {.loss_weight = weight}),
          options};
}

std::string failure_with(const TorchLossWeight& weight) {
  const Dataset text = lines().train;
  Batch batch;
  batch.fill(text, first_rows(kDocuments), kRaggedParts);
  Trainer trainer = ragged_trainer(reader(text.classes), "1f1b", weight);
  try {
    trainer.step(batch);
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

TEST(TorchLossWeight, RaggedMiniBatch_DividesByTokens) {
  const Dataset text = lines().train;
  Batch batch;
  batch.fill(text, first_rows(kDocuments), kRaggedParts);
  const double tokens = tokens_of(batch);
  ASSERT_LT(tokens, static_cast<double>(batch.positions())) << "nothing is padded";
  torch::nn::Sequential plain = reader(text.classes);
  train_plainly(plain, batch, tokens);

  for (const char* schedule : {"1f1b", "zb-h1"}) {
    const torch::nn::Sequential model = reader(text.classes);
    Trainer trainer = ragged_trainer(model, schedule, tokens_in);
    for (int step = 0; step < kRaggedSteps; ++step)
      EXPECT_EQ(trainer.step(batch).loss.weight, tokens);
    EXPECT_THAT(differences(*plain, *model), IsEmpty()) << schedule;
  }
}

TEST(TorchLossWeight, LetsFitTrainOnRaggedLines) {
  const Dataset text = lines().train;
  const torch::nn::Sequential model = reader(text.classes);
  TrainerOptions options{.fit = {.batch_size = 16, .epochs = 4}};
  options.step.learning_rate.base = kLearningRate;
  Trainer trainer({generate("1f1b", {.ranks = 2, .micro_batches = kRaggedParts})},
                  torch_pipeline(model, token_loss, 2, {.loss_weight = tokens_in}),
                  options);
  const FitReport report = trainer.fit(text);

  EXPECT_LT(report.epochs.back().mean_loss(), report.epochs.front().mean_loss());
}

TEST(TorchLossWeight, MustEqualTheReportedWeight) {
  EXPECT_EQ(failure_with(tokens_in), "no failure");
  EXPECT_THAT(failure_with(
                  [](const std::vector<torch::Tensor>& targets) { return tokens_in(targets) + 1; }),
              HasSubstr("the loss of the unit weighed"));
}

TEST(TorchLossWeight, IsNeededForOtherWeights) {
  EXPECT_THAT(failure_with({}), HasSubstr("StageBody::loss_weight"));
}

}  // namespace
}  // namespace millrace::testing_torch
