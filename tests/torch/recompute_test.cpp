// What happens once more or only once: recompute, random numbers, running means, counted memory,
// skips between stages and tied weights.
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/torch/dropout.hpp"
#include "millrace/torch/forward.hpp"
#include "millrace/torch/pass.hpp"
#include "millrace/torch/pipeline.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/small_gpt.hpp"
#include "torch/torch_units.hpp"

namespace millrace::testing_torch {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kParts = 4;
constexpr int kTimes = 2;

/// A layer norm, a dropout of ours, a batch norm and three linear layers.
torch::nn::Sequential dropping(double rate) {
  torch::manual_seed(4);
  return torch::nn::Sequential(torch::nn::Linear(3, 8),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})),
                               TorchDropout(rate, 2),
                               torch::nn::Linear(8, 8),
                               torch::nn::BatchNorm1d(8),
                               TorchDropout(rate, 5),
                               torch::nn::Linear(8, 2));
}

TorchLossSum distance(const std::vector<torch::Tensor>& outputs,
                      const std::vector<torch::Tensor>& targets) {
  return {(outputs[0] - targets[0]).square().sum(), static_cast<double>(targets[0].size(0))};
}

struct Numbers {
  std::vector<TorchUnits::Tensors> inputs, targets;
  double weight = 0;

  Numbers() {
    torch::manual_seed(6);
    for (int i = 0; i < kParts; ++i) {
      const std::int64_t rows = 2 + i % 3;
      inputs.push_back({torch::randn({rows, 3})});
      targets.push_back({torch::randn({rows, 2})});
      weight += static_cast<double>(rows);
    }
  }

  [[nodiscard]] TorchUnits units() const { return {inputs, targets}; }
};

/// Parameters and buffers that differ.
std::vector<std::string> all_differences(const torch::nn::Module& one,
                                         const torch::nn::Module& other) {
  std::vector<std::string> names = differences(one, other);
  const auto others = other.named_buffers();
  for (const auto& each : one.named_buffers())
    if (!torch::equal(each.value(), others[each.key()])) names.push_back(each.key());
  return names;
}

PassContext context_of(std::uint64_t step, std::int64_t first_sample) {
  PassContext context;
  context.seed = 1;
  context.step = step;
  context.first_sample = first_sample;
  return context;
}

void train_plainly(torch::nn::Sequential& model, const Numbers& data) {
  at::set_num_threads(1);
  PlainUpdates updates(*model);
  for (int step = 0; step < kTimes; ++step) {
    updates.zero();
    std::int64_t first = 0;
    for (std::size_t i = 0; i < kParts; ++i) {
      const TorchPass pass(context_of(static_cast<std::uint64_t>(step), first));
      distance({model->forward(data.inputs[i][0])}, data.targets[i])
          .sum.backward(torch::full({}, 1 / data.weight));
      first += data.inputs[i][0].size(0);
    }
    updates.update(step + 1);
  }
}

TrainerOptions options_of(const std::string& executor) {
  TrainerOptions options{.run = {.executor = executor}};
  options.step.learning_rate.base = kLearningRate;
  return options;
}

void train(const Program& program,
           const torch::nn::Sequential& model,
           const std::string& executor,
           const TorchPipelineOptions& pipeline = {}) {
  const Numbers data;
  Trainer trainer({program},
                  torch_pipeline(model, distance, program.shape.stages(), pipeline),
                  options_of(executor));
  TorchUnits units = data.units();
  for (int step = 0; step < kTimes; ++step) trainer.step(units, data.weight);
}

Program recomputing(const std::string& schedule, int ranks) {
  return insert_recompute(generate(schedule, {.ranks = ranks, .micro_batches = kParts}));
}

TEST(TorchRecompute, PlainAutogradBits_RunningMeansOnce) {
  torch::nn::Sequential plain = dropping(0.4);
  train_plainly(plain, Numbers());

  for (const char* schedule : {"1f1b", "zb-h1", "gpipe"})
    for (const int ranks : {1, 3})
      for (const bool recompute : {false, true}) {
        const torch::nn::Sequential model = dropping(0.4);
        train(recompute ? recomputing(schedule, ranks)
                        : generate(schedule, {.ranks = ranks, .micro_batches = kParts}),
              model,
              "ranks");
        EXPECT_THAT(all_differences(*plain, *model), IsEmpty()) << schedule << ' ' << ranks;
      }
}

TEST(TorchDropout, Evaluation_IsTheIdentity) {
  TorchDropout dropout(0.5, 1);
  dropout->eval();
  const auto x = torch::randn({2, 3});

  EXPECT_TRUE(torch::equal(dropout(x), x));
  EXPECT_THROW(TorchDropout(1.0, 1), InvalidArgument);
}

TEST(TorchDropout, MasksDependOnSampleStepAndLayer) {
  const auto mask = [](std::uint64_t step, std::int64_t first, std::uint32_t layer, int rows) {
    const TorchPass pass(context_of(step, first));
    return TorchDropout(0.5, layer)->forward(torch::ones({rows, 64}));
  };
  const torch::Tensor whole = mask(0, 0, 1, 4);

  EXPECT_TRUE(torch::equal(whole.slice(0, 2), mask(0, 2, 1, 2)));
  EXPECT_FALSE(torch::equal(whole, mask(1, 0, 1, 4)));
  EXPECT_FALSE(torch::equal(whole, mask(0, 0, 2, 4)));
  EXPECT_THAT(std::vector<float>(whole.data_ptr<float>(), whole.data_ptr<float>() + whole.numel()),
              Each(testing::AnyOf(0.0F, 2.0F)));
}

torch::nn::Sequential drawing() {
  torch::manual_seed(4);
  return torch::nn::Sequential(
      torch::nn::Linear(3, 8), torch::nn::Dropout(0.5), torch::nn::Linear(8, 2));
}

TEST(TorchRandom, GlobalGenerator_IsRejected) {
  const torch::nn::Sequential model = drawing();
  try {
    train(generate("1f1b", {.ranks = 2, .micro_batches = kParts}), model, "ranks");
    FAIL() << "nothing was refused";
  } catch (const StepError& error) {
    EXPECT_THAT(error.what(), HasSubstr("drawn from PyTorch's generator"));
  }
}

TEST(TorchRandom, SeededPerUnit_IgnoresScheduleAndRecompute) {
  const torch::nn::Sequential model = drawing();
  const TorchPipelineOptions seeded{.random = TorchRandom::SeedEachUnit};
  train(generate("gpipe", {.ranks = 2, .micro_batches = kParts}), model, "sequential", seeded);

  for (const Program& program :
       {generate("1f1b", {.ranks = 2, .micro_batches = kParts}), recomputing("zb-h1", 2)}) {
    const torch::nn::Sequential other = drawing();
    torch::manual_seed(99);
    train(program, other, "sequential", seeded);
    EXPECT_THAT(all_differences(*model, *other), IsEmpty());
  }
}

/// The most that a rank held, by what its stage's meter counted.
std::size_t peak_of(const Program& program, int width, std::size_t rank) {
  const torch::nn::Sequential model(torch::nn::Linear(3, width),
                                    torch::nn::Tanh(),
                                    torch::nn::Linear(width, width),
                                    torch::nn::Linear(width, 2));
  Trainer trainer(
      {program}, torch_pipeline(model, distance, program.shape.stages()), options_of("sequential"));
  const Numbers data;
  TorchUnits units = data.units();
  return trainer.step(units, data.weight).peak_stash_bytes.at(rank);
}

TEST(TorchStash, CountsTheGraphLessWithRecompute) {
  constexpr int kWide = 1000;
  constexpr std::size_t kRows = 2 + 3 + 4 + 2;
  constexpr std::size_t kHidden = kRows * kWide * sizeof(float);
  const Program one = generate("gpipe", {.ranks = 1, .micro_batches = kParts});
  const Program two = generate("gpipe", {.ranks = 2, .micro_batches = kParts});

  // Tanh keeps what it gives, and so does the layer behind the next one.
  EXPECT_GE(peak_of(one, kWide, 0), 2 * kHidden);
  EXPECT_LE(peak_of(one, kWide, 0), 2 * kHidden + kRows * 64);
  EXPECT_LT(peak_of(insert_recompute(one), kWide, 0), kHidden);
  // What the first stage's tanh gave is held there; it is the second one's input, too.
  EXPECT_LE(peak_of(two, kWide, 0), kHidden + kRows * 64);
  EXPECT_LE(peak_of(two, kWide, 1), 2 * kHidden + kRows * 64);
}

TEST(TorchStash, OmitsWhatTheNextStageHolds) {
  const Program two = generate("gpipe", {.ranks = 2, .micro_batches = kParts});
  const torch::nn::Sequential model(torch::nn::Linear(3, 1000), torch::nn::Linear(1000, 2));
  Trainer trainer({two}, torch_pipeline(model, distance, 2), options_of("sequential"));
  const Numbers data;
  TorchUnits units = data.units();

  EXPECT_LE(trainer.step(units, data.weight).peak_stash_bytes.at(0), std::size_t{1000});
}

/// Gives what it was given, changed in its own memory.
struct InPlaceImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    const torch::NoGradGuard plain;
    return x.add_(1);
  }
};
TORCH_MODULE(InPlace);

TEST(TorchStage, RefusesAModuleThatChangesItsInputInPlace) {
  const torch::nn::Sequential model(InPlace(), torch::nn::Linear(3, 2));
  try {
    train(generate("1f1b", {.ranks = 1, .micro_batches = kParts}), model, "sequential");
    FAIL() << "nothing was refused";
  } catch (const StepError& error) {
    EXPECT_THAT(error.what(), HasSubstr("changed its stage's input 0 in place"));
  }
}

struct JoinImpl : torch::nn::Module {
  JoinImpl() : layer(register_module("layer", torch::nn::Linear(4, 2))) {}

  torch::Tensor forward(const torch::Tensor& near, const torch::Tensor& far) {
    return layer(near * far + far);
  }

  torch::nn::Linear layer;
};
TORCH_MODULE(Join);

TEST(TorchStage, SkippingOutput_AddsGradientsAsOneGraph) {
  const auto layers = [] {
    torch::manual_seed(8);
    return std::tuple(torch::nn::Linear(3, 4), torch::nn::Linear(4, 4), Join());
  };
  const Numbers data;
  auto [first, middle, join] = layers();
  for (std::size_t i = 0; i < kParts; ++i) {
    const auto far = torch::tanh(first(data.inputs[i][0]));
    distance({join(torch::relu(middle(far)), far)}, data.targets[i]).sum.backward();
  }

  for (const char* schedule : {"1f1b", "zb-h1"}) {
    auto [a, b, c] = layers();
    const auto begins = std::make_unique<TorchStage>(
        a.ptr(),
        [a = a](const std::vector<torch::Tensor>& x) mutable {
          return std::vector<torch::Tensor>{torch::tanh(a(x[0]))};
        },
        TorchStageSettings{.first = true, .prefix = "a.", .output_uses = {2}});
    const auto goes_on = std::make_unique<TorchStage>(
        b.ptr(),
        [b = b](const std::vector<torch::Tensor>& x) mutable {
          return std::vector<torch::Tensor>{torch::relu(b(x[0]))};
        },
        TorchStageSettings{.prefix = "b."});
    const auto ends = make_torch_stage(c, {.loss = distance, .prefix = "c."});
    Program program = generate(schedule, {.ranks = 3, .micro_batches = kParts});
    program.shape.edges = {
        {Stage{0}, 0, Stage{1}, 0}, {Stage{0}, 0, Stage{2}, 1}, {Stage{1}, 0, Stage{2}, 0}};
    const std::vector<HostedStage> stages{{Replica{0}, Stage{0}, begins.get()},
                                          {Replica{0}, Stage{1}, goes_on.get()},
                                          {Replica{0}, Stage{2}, ends.get()}};
    TorchUnits units = data.units();
    (void)make_executor(ExecutorKind::Ranks, program, stages)->run(units, {});
    EXPECT_TRUE(torch::equal(a->weight.grad(), first->weight.grad())) << schedule;
    EXPECT_TRUE(torch::equal(b->weight.grad(), middle->weight.grad())) << schedule;
    EXPECT_TRUE(torch::equal(c->layer->weight.grad(), join->layer->weight.grad())) << schedule;
  }
}

}  // namespace
}  // namespace millrace::testing_torch
