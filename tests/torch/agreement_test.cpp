// A transformer of PyTorch's layers and the same one in millrace's own: of the same weights and
// data both make the same gradients and weights, but for roundings.
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/torch/pipeline.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/usual_gpt.hpp"

namespace millrace::testing_torch {
namespace {

constexpr int kBlocks = 2;
constexpr int kLength = 16;
constexpr int kLayersOfBlock = 9;  // of ours
constexpr double kNear = 1e-5;     // of a tensor's largest value

/// "1.mix.weight" is our "layers.3.weight": our layers are finer.
std::string our_layer_of(const std::string& theirs) {
  static const std::map<std::string, int> of_block = {
      {"before", 0}, {"mix", 1}, {"out", 3}, {"between", 5}, {"wide", 6}, {"narrow", 7}};
  const int module = theirs[0] - '0';
  const std::string rest = theirs.substr(2), leaf = rest.substr(rest.rfind('.') + 1);
  const std::string inner = rest.substr(0, rest.find('.'));
  int layer = 0;
  if (module == 0)
    layer = inner == "words" ? 0 : 1;
  else if (module <= kBlocks)
    layer = 2 + kLayersOfBlock * (module - 1) + of_block.at(inner);
  else
    layer = 2 + kLayersOfBlock * kBlocks + (module - kBlocks - 1);
  return "layers." + std::to_string(layer) + "." + leaf;
}

/// A tensor of ours as PyTorch has it: its linear layers' weights lie the other way round, but for
/// the head's.
torch::Tensor laid_out_as(const std::string& theirs, const Tensor& ours) {
  const std::vector<std::int64_t> sizes(ours.dims().begin(), ours.dims().end());
  const torch::Tensor same = torch::empty(sizes, torch::kFloat);
  std::ranges::copy(ours.as<float>(), same.data_ptr<float>());
  const bool of_block = theirs[0] != '0' && theirs[0] - '0' <= kBlocks;
  return of_block && sizes.size() == 2 ? same.t().contiguous() : same;
}

void expect_near(const std::string& what, const torch::Tensor& theirs, const torch::Tensor& ours) {
  EXPECT_LE((theirs - ours).abs().max().item<double>(), kNear * ours.abs().max().item<double>())
      << what;
}

TEST(TorchAgreement, OwnTransformer_TrainsTheSame) {
  const Dataset text = load_data("text", 1, kLength).train;
  TrainerOptions options{.run = {.executor = "sequential"}};
  options.step.optimizer.kind = OptimizerKind::Momentum;
  options.step.learning_rate.base = 0.05;
  Trainer ours(parse_model("gpt:layers=2,d=32,heads=4,context=16,vocabulary=" +
                           std::to_string(text.classes)),
               {.shape = {.ranks = 2, .micro_batches = 4}},
               options);
  const torch::nn::Sequential model = usual_gpt(
      {.words = text.classes, .columns = 32, .heads = 4, .length = kLength, .blocks = kBlocks});
  Trainer theirs({generate("zb-h1", {.ranks = 2, .micro_batches = 4})},
                 torch_pipeline(model, loss_of_words, 2),
                 options);
  {
    const torch::NoGradGuard plain;
    for (auto& each : model->named_parameters())
      each.value().copy_(laid_out_as(each.key(), ours.state().read(our_layer_of(each.key()))));
  }
  ASSERT_EQ(model->named_parameters().size(), ours.state().names().size());
  std::map<std::string, torch::Tensor> gradients;
  theirs.before_update = [&](std::span<Parameter* const>) {
    for (const auto& each : model->named_parameters())
      gradients[our_layer_of(each.key())] = each.value().grad().clone();
  };
  ours.before_update = [&](std::span<Parameter* const> parameters) {
    for (const auto& each : model->named_parameters())
      for (const Parameter* parameter : parameters)
        if (parameter->name == our_layer_of(each.key()))
          expect_near("gradient of " + each.key(),
                      gradients.at(parameter->name),
                      laid_out_as(each.key(), parameter->gradient));
  };
  Loader loader(text, {.batch_size = 8, .micro_batches = 4});
  for (int i = 0; i < 5; ++i) {
    Batch& batch = loader.next();
    const auto weight = static_cast<double>(batch.positions());
    const double loss = theirs.step(batch, weight).mean_loss();
    EXPECT_NEAR(ours.step(batch).mean_loss(), loss, kNear * loss);
  }
  EXPECT_EQ(gradients.size(), ours.state().names().size());
  for (const auto& each : model->named_parameters())
    expect_near(each.key(),
                each.value().detach(),
                laid_out_as(each.key(), ours.state().read(our_layer_of(each.key()))));
}

}  // namespace
}  // namespace millrace::testing_torch
