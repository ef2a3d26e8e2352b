// Cuts by what modules take, and as many threads as a rank is given.
#include <atomic>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/small_gpt.hpp"
#include "torch/torch_units.hpp"

namespace millrace::testing_torch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kColumns = 8;

/// Much work without a parameter.
torch::Tensor laboured(const torch::Tensor& x) {
  torch::Tensor wide = torch::ones({200, 200}) * x.mean();
  for (int i = 0; i < 20; ++i) wide = torch::matmul(wide, wide) * 1e-3;
  return x + wide.mean() * 1e-9;
}

struct LabourImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return laboured(x); }
};
TORCH_MODULE(Labour);

TorchLossSum light_loss(const std::vector<torch::Tensor>& outputs,
                        const std::vector<torch::Tensor>& targets) {
  return {(outputs[0] - targets[0]).square().sum(), static_cast<double>(targets[0].size(0))};
}

TorchLossSum heavy_loss(const std::vector<torch::Tensor>& outputs,
                        const std::vector<torch::Tensor>& targets) {
  return light_loss({laboured(outputs[0])}, targets);
}

torch::nn::Linear narrow() {
  return torch::nn::Linear(kColumns, kColumns);
}

std::vector<int> cut_by_time(const torch::nn::Sequential& model,
                             const TorchLoss& loss,
                             bool with_targets) {
  CutByTime sample{.inputs = {torch::randn({2, kColumns})}};
  if (with_targets) sample.targets = {torch::randn({2, kColumns})};
  return torch_boundaries(model, loss, 2, {.cut = sample});
}

TEST(TorchCut, ByTimeLeavesASlowModuleAlone) {
  const torch::nn::Sequential late(narrow(), narrow(), narrow(), Labour());
  const torch::nn::Sequential early(Labour(), narrow(), narrow(), narrow());

  EXPECT_THAT(cut_by_time(late, light_loss, false), ElementsAre(0, 3, 4));
  EXPECT_THAT(cut_by_time(early, light_loss, false), ElementsAre(0, 1, 4));
}

TEST(TorchCut, ByTime_CountsTheLoss) {
  const torch::nn::Sequential model(Labour(), narrow(), narrow(), narrow());

  EXPECT_THAT(cut_by_time(model, heavy_loss, false), ElementsAre(0, 1, 4));
  EXPECT_THAT(
      cut_by_time(torch::nn::Sequential(narrow(), narrow(), narrow(), narrow()), heavy_loss, true),
      ElementsAre(0, 3, 4));
}

TEST(TorchCut, ByTime_LeavesTheModelUnchanged) {
  const torch::nn::Sequential model(
      narrow(), torch::nn::BatchNorm1d(kColumns), torch::nn::Dropout(0.5));
  const torch::Tensor mean = model->ptr(1)->named_buffers()["running_mean"];
  const torch::Tensor before = mean.clone();
  torch::manual_seed(9);
  const torch::Tensor expected = torch::randn({3});
  torch::manual_seed(9);
  const CutByTime sample{.inputs = {torch::ones({2, kColumns})}};
  (void)torch_boundaries(
      model, light_loss, 2, {.cut = sample, .random = TorchRandom::SeedEachUnit});

  EXPECT_TRUE(torch::equal(mean, before));
  EXPECT_TRUE(torch::equal(torch::randn({3}), expected));
  EXPECT_FALSE(model->parameters()[0].grad().defined());
}

TEST(TorchCut, ByTimeNeedsARepetition) {
  const torch::nn::Sequential model(narrow(), narrow());
  const CutByTime sample{.inputs = {torch::ones({2, kColumns})}, .repetitions = 0};
  try {
    (void)torch_pipeline(model, light_loss, 2, {.cut = sample});
    FAIL() << "nothing was refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("at least once, not 0 times"));
  }
}

/// Remembers the most threads that a forward could use.
struct ThreadsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    most = std::max(most.load(), at::get_num_threads());
    return x * 1;
  }

  std::atomic<int> most{0};
};
TORCH_MODULE(Threads);

TEST(TorchThreads, AreAsManyAsARankIsGiven) {
  for (const int count : {1, 2}) {
    const Threads threads;
    const torch::nn::Sequential model(narrow(), threads);
    Trainer trainer({generate("1f1b", {.ranks = 2, .micro_batches = 2})},
                    torch_pipeline(model, light_loss, 2, {.threads_per_rank = count}),
                    {.run = {.executor = "ranks"}});
    const TorchUnits::Tensors rows{torch::ones({2, kColumns})};
    TorchUnits data({rows, rows}, {rows, rows});
    (void)trainer.step(data, 4);
    EXPECT_EQ(threads->most, count);
  }
}

TEST(TorchThreads, MustBeAtLeastOne) {
  const torch::nn::Sequential model(narrow());
  EXPECT_THROW((void)torch_pipeline(model, light_loss, 1, {.threads_per_rank = 0}),
               InvalidArgument);
}

}  // namespace
}  // namespace millrace::testing_torch
