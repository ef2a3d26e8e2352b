// A model of PyTorch's layers through the schedules: the weights are those of a plain loop over its
// autograd, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/small_gpt.hpp"

namespace millrace::testing_torch {
namespace {

constexpr int kSteps = 5;
constexpr int kMicroBatches = 12;

/// The weights of the plain loop, made once.
const torch::nn::Sequential& plain_weights() {
  static const torch::nn::Sequential trained = [] {
    torch::nn::Sequential model = small_gpt();
    train_plainly(model, Sentences(kMicroBatches), kSteps);
    return model;
  }();
  return trained;
}

/// Those parameters of which a pipeline makes something else.
std::vector<std::string> differences_of(const std::string& schedule,
                                        int ranks,
                                        const std::string& executor) {
  const torch::nn::Sequential model = small_gpt();
  const Program program = generate(schedule, {.ranks = ranks, .micro_batches = kMicroBatches});
  Sentences data(kMicroBatches);
  TrainerOptions options{.executor = executor};
  options.learning_rate.base = kLearningRate;
  Trainer trainer(program, torch_pipeline(model, next_word_loss, program.shape.stages()), options);
  for (int step = 0; step < kSteps; ++step) trainer.step(data, data.total_weight());
  return differences(*plain_weights(), *model);
}

class TorchSchedules : public testing::TestWithParam<std::string> {
 public:
  static void expect_plain_bits(const std::string& executor) {
    for (int ranks = 1; ranks <= 4; ++ranks)
      EXPECT_THAT(differences_of(GetParam(), ranks, executor), testing::IsEmpty())
          << ranks << " ranks";
  }
};

TEST_P(TorchSchedules, GiveTheBitsOfPlainAutogradInSequence) {
  expect_plain_bits("sequential");
}

TEST_P(TorchSchedules, GiveTheBitsOfPlainAutogradOnAFlowGraph) {
  expect_plain_bits("flow-graph");
}

TEST_P(TorchSchedules, GiveTheBitsOfPlainAutogradOnThreadsOfRanks) {
  expect_plain_bits("ranks");
}

INSTANTIATE_TEST_SUITE_P(All,
                         TorchSchedules,
                         testing::Values("1f1b", "gpipe", "zb-h1", "interleaved", "zb-v"),
                         [](const auto& schedule) {
                           std::string name = schedule.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace millrace::testing_torch
