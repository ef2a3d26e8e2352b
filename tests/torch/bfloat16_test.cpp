// bf16 by autocast, and the same model in millrace's own layers.
#include <ATen/autocast_mode.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/torch/pipeline.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/small_gpt.hpp"

namespace millrace::testing_torch {
namespace {

constexpr int kRuns = 5;
constexpr int kPieces = 6;

/// The rest of the scope in bf16, as a stage does it.
class InBfloat16 {
 public:
  InBfloat16() {
    at::autocast::set_autocast_cpu_dtype(torch::kBFloat16);
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_cpu_enabled(true);
  }
  InBfloat16(const InBfloat16&) = delete;
  InBfloat16& operator=(const InBfloat16&) = delete;
  ~InBfloat16() { at::autocast::set_cpu_enabled(false); }
};

torch::nn::Sequential plain_bfloat16_weights() {
  torch::nn::Sequential model = small_gpt();
  const Sentences data(kPieces);
  at::set_num_threads(1);
  PlainUpdates updates(*model);
  for (int step = 1; step <= kRuns; ++step) {
    updates.zero();
    for (std::size_t i = 0; i < data.tokens().size(); ++i) {
      TorchLossSum loss;
      {
        const InBfloat16 region;
        loss = next_word_loss({model->forward(data.tokens()[i])}, {data.next()[i]});
      }
      loss.sum.backward(torch::full_like(loss.sum, 1.0 / data.total_weight()));
    }
    updates.update(step);
  }
  return model;
}

torch::nn::Sequential trained(const Program& program, DType precision) {
  const torch::nn::Sequential model = small_gpt();
  Sentences data(kPieces);
  TrainerOptions options{.run = {.executor = "ranks"}};
  options.step.learning_rate.base = kLearningRate;
  Trainer trainer(
      {program},
      torch_pipeline(model, next_word_loss, program.shape.stages(), {.precision = precision}),
      options);
  for (int step = 0; step < kRuns; ++step) trainer.step(data, data.total_weight());
  return model;
}

TEST(TorchBfloat16, GivesTheBitsOfPlainAutogradUnderAutocast) {
  const torch::nn::Sequential plain = plain_bfloat16_weights();
  for (const char* schedule : {"1f1b", "zb-h1", "zb-v"}) {
    const Program program = generate(schedule, {.ranks = 3, .micro_batches = kPieces});
    EXPECT_THAT(differences(*plain, *trained(program, DType::BF16)), testing::IsEmpty())
        << schedule;
    EXPECT_THAT(differences(*plain, *trained(insert_recompute(program), DType::BF16)),
                testing::IsEmpty())
        << schedule << " with recompute";
  }
  const Program program = generate("1f1b", {.ranks = 3, .micro_batches = kPieces});
  EXPECT_THAT(differences(*plain, *trained(program, DType::F32)), testing::Not(testing::IsEmpty()));
}

TEST(TorchBfloat16, RefusesF16) {
  const torch::nn::Sequential model = small_gpt();
  try {
    (void)torch_pipeline(model, next_word_loss, 2, {.precision = DType::F16});
    FAIL() << "nothing was refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("f32 or bf16 on processors, not in f16"));
  }
}

/// Our own layer's parameter as PyTorch has it: weights are [out, in] there, [in, out] here.
torch::Tensor as_theirs(const Tensor& ours) {
  const std::vector<std::int64_t> sizes(ours.dims().begin(), ours.dims().end());
  const torch::Tensor same = torch::empty(sizes, torch::kFloat);
  std::ranges::copy(ours.as<float>(), same.data_ptr<float>());
  return sizes.size() == 2 ? same.t().contiguous() : same;
}

/// "2.weight", behind an activation, is our "layers.1.weight".
std::string our_name(std::string theirs) {
  if (theirs[0] == '2') theirs[0] = '1';
  return "layers." + theirs;
}

TEST(TorchAgreement, OwnLayers_TrainTheSame) {
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 4});
  TrainerOptions options{.run = {.executor = "sequential"}};
  options.step.optimizer.kind = OptimizerKind::Momentum;
  Trainer ours(parse_model("mlp:64-32-10"), {.shape = {.ranks = 2, .micro_batches = 4}}, options);
  const torch::nn::Sequential model(
      torch::nn::Linear(64, 32), torch::nn::ReLU(), torch::nn::Linear(32, 10));
  const TorchLoss loss = [](const std::vector<torch::Tensor>& outputs,
                            const std::vector<torch::Tensor>& targets) {
    return TorchLossSum{
        torch::cross_entropy_loss(outputs[0], targets[0].to(torch::kLong), {}, at::Reduction::Sum),
        static_cast<double>(targets[0].size(0))};
  };
  Trainer theirs({program}, torch_pipeline(model, loss, 2), options);
  {
    const torch::NoGradGuard plain;
    for (auto& each : model->named_parameters())
      each.value().copy_(as_theirs(ours.state().read(our_name(each.key()))));
  }

  const Dataset data = load_data("digits", 1).train;
  for (int i = 0; i < kRuns; ++i) {
    Batch batch(data, 4);
    ours.step(batch);
    theirs.step(batch);
  }
  for (const auto& each : model->named_parameters()) {
    const torch::Tensor same = as_theirs(ours.state().read(our_name(each.key())));
    EXPECT_LE((each.value() - same).abs().max().item<double>(),
              1e-5 * same.abs().max().item<double>())
        << each.key();
    EXPECT_FALSE(torch::equal(each.value(), same) && each.key() == "0.weight")
        << "other products, other bits: are these two trainings?";
  }
}

}  // namespace
}  // namespace millrace::testing_torch
