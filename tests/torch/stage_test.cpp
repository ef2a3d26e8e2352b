// One TorchStage after another: what crosses between them, what the module sees and keeps, and what
// is refused by name.
#include "millrace/torch/stage.hpp"

#include <algorithm>
#include <atomic>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/torch/forward.hpp"
#include "millrace/torch/pipeline.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/torch_units.hpp"

namespace millrace::testing_torch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int kUnits = 4;
constexpr double kWeight = 12;  // of three rows each

/// Words and numbers in; a hidden tensor, the words, and a mask that nobody differentiates, out.
struct ReadImpl : torch::nn::Module {
  ReadImpl()
      : words(register_module("words", torch::nn::Embedding(5, 4))),
        numbers(register_module("numbers", torch::nn::Linear(2, 4))) {}

  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(const torch::Tensor& tokens,
                                                                  const torch::Tensor& x) {
    const torch::Tensor mask = (x.slice(1, 0, 1) > 0).to(torch::kFloat);
    return {torch::relu(words(tokens) + numbers(x)), tokens, mask};
  }

  torch::nn::Embedding words;
  torch::nn::Linear numbers;
};
TORCH_MODULE(Read);

/// Uses all three, the hidden tensor twice and its own weight twice.
struct WriteImpl : torch::nn::Module {
  WriteImpl() : layer(register_module("layer", torch::nn::Linear(4, 4))) {}

  torch::Tensor forward(const torch::Tensor& hidden,
                        const torch::Tensor& tokens,
                        const torch::Tensor& mask) {
    const torch::Tensor once = torch::tanh(layer(hidden)) * mask;
    return layer(once) + hidden * tokens.unsqueeze(1).to(torch::kFloat);
  }

  torch::nn::Linear layer;
};
TORCH_MODULE(Write);

TorchLossSum squares(const std::vector<torch::Tensor>& outputs,
                     const std::vector<torch::Tensor>& targets) {
  return {(outputs[0] - targets[0]).square().sum(), static_cast<double>(targets[0].size(0))};
}

TorchUnits words_and_numbers() {
  torch::manual_seed(3);
  std::vector<TorchUnits::Tensors> inputs, targets;
  for (int i = 0; i < kUnits; ++i) {
    inputs.push_back({torch::randint(5, {3}, torch::kLong), torch::randn({3, 2})});
    targets.push_back({torch::randn({3, 4})});
  }
  return {inputs, targets};
}

/// Gradients of both modules after one run of a schedule.
std::vector<torch::Tensor> gradients_by(const std::string& schedule) {
  torch::manual_seed(5);
  const Read read;
  const Write write;
  const auto first = make_torch_stage(read, {.first = true, .prefix = "read."});
  const auto last = make_torch_stage(write, {.loss = squares, .prefix = "write."});
  const std::vector<HostedStage> stages{{Replica{0}, Stage{0}, first.get()},
                                        {Replica{0}, Stage{1}, last.get()}};
  const auto executor = make_executor(
      ExecutorKind::Ranks, generate(schedule, {.ranks = 2, .micro_batches = kUnits}), stages);
  TorchUnits data = words_and_numbers();
  const StepResult result = executor->run(data, {.loss_scale = 1 / kWeight});
  EXPECT_EQ(result.loss.weight, kWeight);
  EXPECT_EQ(first->stashed_units() + last->stashed_units(), 0U);
  std::vector<torch::Tensor> gradients;
  for (const auto& module : {read.ptr()->parameters(), write.ptr()->parameters()})
    for (const torch::Tensor& parameter : module) gradients.push_back(parameter.grad());
  return gradients;
}

std::vector<torch::Tensor> plain_gradients() {
  torch::manual_seed(5);
  Read read;
  Write write;
  std::vector<torch::Tensor> parameters = read->parameters();
  for (const torch::Tensor& each : write->parameters()) parameters.push_back(each);
  for (torch::Tensor& each : parameters) each.mutable_grad() = torch::zeros_like(each);
  TorchUnits data = words_and_numbers();
  torch::manual_seed(3);
  for (int i = 0; i < kUnits; ++i) {
    const auto tokens = torch::randint(5, {3}, torch::kLong);
    const auto x = torch::randn({3, 2});
    const auto target = torch::randn({3, 4});
    const auto [hidden, same, mask] = read(tokens, x);
    squares({write(hidden, same, mask)}, {target}).sum.backward(torch::full({}, 1 / kWeight));
  }
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& each : parameters) gradients.push_back(each.grad());
  return gradients;
}

TEST(TorchStage, TakesAndGivesSeveralTensorsSomeWithoutGradient) {
  const std::vector<torch::Tensor> expected = plain_gradients();
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    const std::vector<torch::Tensor> gradients = gradients_by(schedule);
    ASSERT_EQ(gradients.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::equal(gradients[i], expected[i])) << schedule << ' ' << i;
  }
}

torch::nn::Sequential two_layers() {
  torch::manual_seed(2);
  return torch::nn::Sequential(torch::nn::Linear(2, 4), torch::nn::Linear(4, 1));
}

TorchUnits two_numbers() {
  torch::manual_seed(3);
  std::vector<TorchUnits::Tensors> inputs, targets;
  for (int i = 0; i < kUnits; ++i) {
    inputs.push_back({torch::randn({3, 2})});
    targets.push_back({torch::randn({3, 1})});
  }
  return {inputs, targets};
}

/// Two stages in two ranks.
Trainer trainer_of(const torch::nn::Sequential& model, const std::string& schedule = "zb-h1") {
  return {{generate(schedule, {.ranks = 2, .micro_batches = kUnits})},
          torch_pipeline(model, squares, 2),
          {.run = {.executor = "ranks"}}};
}

std::string failure_of(Trainer& trainer) {
  TorchUnits data = two_numbers();
  try {
    trainer.step(data, kWeight);
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

/// To PyTorch the gradients of a sum's terms are one tensor; who is given one may overwrite it.
TEST(TorchStage, GivesEveryInputAGradientOfItsOwn) {
  TorchStage stage(nullptr, [](const std::vector<torch::Tensor>& inputs) {
    return std::vector<torch::Tensor>{inputs[0] + inputs[1]};
  });
  stage.reserve(1, 1);
  const auto ones = [](int count) {
    TensorList list;
    for (int i = 0; i < count; ++i) {
      list.push_back(Tensor(DType::F32, {2, 3}));
      std::ranges::fill(list[static_cast<std::size_t>(i)].as<float>(), 1.0F);
    }
    return list;
  };
  (void)stage.forward({}, ones(2));
  TensorList given = stage.backward({}, ones(1));
  ASSERT_EQ(given.size(), 2U);
  std::ranges::fill(given[0].as<float>(), 7.0F);
  EXPECT_THAT(given[1].as<float>(), testing::Each(1.0F));
}

TEST(TorchStage, GlobalNames_StateIsTheModule) {
  const torch::nn::Sequential model = two_layers();
  Trainer trainer = trainer_of(model);

  EXPECT_THAT(
      std::vector<std::string>(trainer.state().names().begin(), trainer.state().names().end()),
      ElementsAre("layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"));
  EXPECT_EQ(trainer.state().read("layers.1.weight").data(),
            model->ptr(1)->named_parameters()["weight"].data_ptr());
}

TEST(TorchStage, NamesTheParameterThatAModuleMovedElsewhere) {
  const torch::nn::Sequential model = two_layers();
  Trainer trainer = trainer_of(model);
  EXPECT_EQ(failure_of(trainer), "no failure");

  model->ptr(1)->to(torch::kDouble);
  EXPECT_THAT(
      failure_of(trainer),
      AllOf(HasSubstr("stage 1"), HasSubstr("'layers.1.weight' is no longer in the memory")));
}

TEST(TorchStage, GradientSetToNone_NamesTheParameter) {
  const torch::nn::Sequential model = two_layers();
  Trainer trainer = trainer_of(model);

  model->ptr(0)->named_parameters()["bias"].mutable_grad().reset();
  EXPECT_THAT(failure_of(trainer), HasSubstr("the gradient of 'layers.0.bias' is no longer"));
}

/// Fails once, when it is told to.
struct FragileImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    TORCH_CHECK(!fails.exchange(false), "the glass broke");
    return x * 2;
  }

  std::atomic<bool> fails{true};
};
TORCH_MODULE(Fragile);

TEST(TorchStage, Exception_IsOneLine) {
  torch::nn::Sequential model(torch::nn::Linear(2, 1), Fragile());
  Trainer trainer = trainer_of(model);

  EXPECT_THAT(failure_of(trainer),
              AllOf(HasSubstr("stage 1"), HasSubstr("the glass broke"), Not(HasSubstr("\n"))));
  EXPECT_EQ(failure_of(trainer), "no failure");
}

TEST(TorchStage, UnfitShapes_AreOneLine) {
  torch::nn::Sequential model(torch::nn::Linear(2, 3), torch::nn::Linear(4, 1));
  Trainer trainer = trainer_of(model);

  EXPECT_THAT(failure_of(trainer), AllOf(HasSubstr("cannot be multiplied"), Not(HasSubstr("\n"))));
}

TEST(TorchStage, CallsAParametersHookOncePerUnit) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    const torch::nn::Sequential model = two_layers();
    std::atomic<int> calls = 0;
    torch::Tensor weight = model->ptr(0)->named_parameters()["weight"];
    weight.register_hook([&calls](const torch::Tensor& gradient) {
      ++calls;
      return torch::zeros_like(gradient);
    });
    const torch::Tensor before = weight.detach().clone();
    Trainer trainer = trainer_of(model, schedule);
    EXPECT_EQ(failure_of(trainer), "no failure");

    EXPECT_EQ(calls, kUnits) << schedule;
    EXPECT_TRUE(torch::equal(weight, before)) << "its gradient became zero";
  }
}

/// Doubles the gradient of what passes through, and counts.
struct DoublerImpl : torch::nn::Module {
  DoublerImpl() : layer(register_module("layer", torch::nn::Linear(4, 4))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = layer(x);
    if (y.requires_grad())
      y.register_hook([this](const torch::Tensor& gradient) {
        ++calls;
        return gradient * 2;
      });
    return y;
  }

  torch::nn::Linear layer;
  std::atomic<int> calls{0};
};
TORCH_MODULE(Doubler);

TEST(TorchStage, SplitBackward_CallsHooksOncePerUnit) {
  std::vector<torch::Tensor> gradients;
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    torch::manual_seed(2);
    const Doubler doubler;
    const torch::nn::Sequential model(torch::nn::Linear(2, 4), doubler, torch::nn::Linear(4, 1));
    Trainer trainer({generate(schedule, {.ranks = 3, .micro_batches = kUnits})},
                    torch_pipeline(model, squares, 3),
                    {.run = {.executor = "sequential"}});
    trainer.before_update = [&](std::span<Parameter* const>) {
      gradients.push_back(doubler->layer->weight.grad().clone());
    };
    EXPECT_EQ(failure_of(trainer), "no failure");
    EXPECT_EQ(doubler->calls, kUnits) << schedule;
  }
  EXPECT_TRUE(torch::equal(gradients.at(0), gradients.at(1)));
}

/// Remembers the fewest and most threads that a pass could use.
struct CountsThreadsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    most = std::max(most.load(), at::get_num_threads());
    return x * 1;
  }

  std::atomic<int> most{0};
};
TORCH_MODULE(CountsThreads);

TEST(TorchStage, RunsEveryPassWithOneThread) {
  const CountsThreads counts;
  torch::nn::Sequential model(torch::nn::Linear(2, 1), counts);
  Trainer trainer = trainer_of(model);
  at::set_num_threads(2);

  EXPECT_EQ(failure_of(trainer), "no failure");
  EXPECT_EQ(counts->most, 1);
}

TEST(TorchStage, RunningMeans_AreStatisticsInOrder) {
  const auto model_of = [] {
    torch::manual_seed(2);
    return torch::nn::Sequential(
        torch::nn::Linear(2, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
  };
  torch::nn::Sequential plain = model_of();
  torch::manual_seed(3);
  for (int i = 0; i < kUnits; ++i) {
    plain->forward(torch::randn({3, 2}));
    (void)torch::randn({3, 1});
  }
  torch::nn::Sequential model = model_of();
  Trainer trainer = trainer_of(model);
  (void)failure_of(trainer);

  const auto mean = [](const torch::nn::Sequential& of) {
    return of->ptr(1)->named_buffers()["running_mean"];
  };
  torch::manual_seed(3);
  EXPECT_TRUE(torch::allclose(mean(model), mean(plain)));
  EXPECT_EQ(trainer.state().read("layers.1.running_mean").data(), mean(model).data_ptr());
  EXPECT_FALSE(trainer.state().is_trained("layers.1.running_mean"));
}

TEST(TorchStage, EvaluatesWithoutGraphAndInEvaluationMode) {
  torch::nn::Sequential model(
      torch::nn::Linear(2, 4), torch::nn::Dropout(0.9), torch::nn::Linear(4, 1));
  Trainer trainer = trainer_of(model);
  TorchUnits data = two_numbers();
  const Score score = trainer.evaluate(data);

  model->eval();
  torch::manual_seed(3);
  double sum = 0;
  for (int i = 0; i < kUnits; ++i) {
    const auto x = torch::randn({3, 2});
    sum += squares({model->forward(x)}, {torch::randn({3, 1})}).sum.item<double>();
  }
  EXPECT_EQ(score.loss.sum, sum);
  EXPECT_EQ(score.loss.weight, kWeight);
}

std::string refusal(const torch::nn::Sequential& model, int stages, const TorchCut& cut = {}) {
  try {
    (void)torch_pipeline(model, squares, stages, {.cut = cut});
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no refusal";
}

TEST(TorchPipeline, RefusesATensorThatStagesShareAndNamesIt) {
  const torch::nn::Linear shared(2, 2);
  const torch::nn::Sequential model(shared, torch::nn::ReLU(), shared);

  EXPECT_THAT(refusal(model, 2),
              HasSubstr("stages 0 and 1 share the tensor 'layers.0.weight' ('layers.2.weight')"));
  EXPECT_EQ(refusal(model, 1), "no refusal");
}

TEST(TorchPipeline, RefusesParametersThatCannotBeTrained) {
  torch::nn::Sequential model = two_layers();
  model->ptr(1)->to(torch::kDouble);

  EXPECT_THAT(refusal(model, 2), HasSubstr("parameter 'layers.1.weight' must be f32"));
}

TEST(TorchPipeline, SplitsEvenlyOrAsGiven) {
  const torch::nn::Sequential model(torch::nn::Linear(2, 2),
                                    torch::nn::Linear(2, 2),
                                    torch::nn::Linear(2, 2),
                                    torch::nn::Linear(2, 40));
  const auto parameters_of_first = [&](const TorchCut& cut) {
    return torch_pipeline(model, squares, 2, {.cut = cut}).front()->parameters().size();
  };

  EXPECT_EQ(parameters_of_first(CutEvenly{}), 4U);
  EXPECT_EQ(parameters_of_first(CutByParameters{}), 6U);
  EXPECT_EQ(parameters_of_first(std::vector<int>{0, 1, 4}), 2U);
  EXPECT_THAT(refusal(model, 2, std::vector<int>{0, 1, 2, 4}), HasSubstr("3 stages, 2 were asked"));
  EXPECT_THAT(refusal(model, 5), Not(HasSubstr("no refusal")));
}

}  // namespace
}  // namespace millrace::testing_torch
