// A small transformer through the Trainer: the same bits for every cut, schedule, executor,
// recompute and precision, and a task that it learns.
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/random.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/trainer.hpp"
#include "training/first_digits.hpp"

namespace millrace::testing_training {
namespace {

constexpr std::int64_t kSequences = 22;
constexpr std::int64_t kLength = 12;
constexpr std::int64_t kTokens = 8;

/// The class at a position is the token three before it: what attention alone can tell.
Dataset echoes() {
  Tensor tokens(DType::I32, {kSequences, kLength});
  Tensor echo(DType::I32, {kSequences, kLength});
  Tensor weights(DType::F32, {kSequences, kLength});
  std::uint32_t drawn = 0;
  for (std::size_t i = 0; i < tokens.as<std::int32_t>().size(); ++i) {
    const std::size_t position = i % kLength;
    tokens.as<std::int32_t>()[i] = static_cast<std::int32_t>(
        random_below({.seed = 6}, drawn++, static_cast<std::uint32_t>(kTokens)));
    echo.as<std::int32_t>()[i] = position < 3 ? 0 : tokens.as<std::int32_t>()[i - 3];
    weights.as<float>()[i] = position < 3 ? 0.0F : 1.0F;
  }
  Dataset data;
  data.name = "echoes";
  data.inputs.push_back({"tokens", std::move(tokens), true});
  data.targets.push_back({"echo", std::move(echo), true});
  data.targets.push_back({"weights", std::move(weights), true});
  data.classes = kTokens;
  return data;
}

/// Blocks of attention and of a gated perceptron, each behind a norm, each added to what came in.
ModelSpec transformer(DType precision, int blocks = 2) {
  ModelSpec model;
  model.inputs = {{DType::I32, {kSamples, kPositions}, false}};
  auto& layers = model.layers;
  const auto last = [&] { return LayerValue{.layer = static_cast<int>(layers.size()) - 1}; };
  layers = {{"embedding", {{"rows", kTokens}, {"columns", std::int64_t{16}}}},
            {"positions", {{"context", kLength}}}};
  for (int block = 0; block < blocks; ++block) {
    LayerValue before = last();
    layers.push_back({.kind = block == 0 ? "rms_norm" : "layer_norm", .keep_f32 = true});
    layers.push_back({"linear", {{"out", std::int64_t{32}}}});
    layers.push_back(
        {"attention",
         {{"heads", std::int64_t{4}}, {"kv_heads", std::int64_t{2}}, {"rotary", 100.0}}});
    layers.push_back({"linear", {{"out", std::int64_t{16}}}});
    layers.push_back({"add", {}, {before, last()}});
    before = last();
    layers.push_back({.kind = "rms_norm", .keep_f32 = true});
    layers.push_back({"linear", {{"out", std::int64_t{48}}}});
    layers.push_back({"swiglu"});
    layers.push_back({"linear", {{"out", std::int64_t{16}}}});
    layers.push_back({"add", {}, {before, last()}});
  }
  layers.push_back({"linear", {{"out", kTokens}}});
  model.precision = precision;
  return model;
}

TestOptions job(const std::string& schedule, const std::string& executor, int ranks) {
  TestOptions options = plain_options(ranks, 4);
  options.step.optimizer = optimizer_defaults(OptimizerKind::AdamW);
  options.step.learning_rate.base = 0.01;
  options.step.clip_norm = 0.5;
  options.fit.batch_size = 9;  // the last mini-batch has 4
  options.fit.epochs = 1;
  options.pipeline.schedule = schedule;
  options.run.executor = executor;
  return options;
}

std::string hash_after(const ModelSpec& model, const TestOptions& options) {
  Trainer trainer(model, options.pipeline, options);
  trainer.fit(echoes());
  return trainer.weights_hash();
}

using Job = std::tuple<std::string, DType>;

class TransformerBits : public testing::TestWithParam<Job> {};

TEST_P(TransformerBits, EverySchedule_HasBitsOfOneRank) {
  const auto& [executor, precision] = GetParam();
  const ModelSpec model = transformer(precision);
  const std::string alone = hash_after(model, job("gpipe", "sequential", 1));
  for (const int ranks : {2, 3, 4})
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1"})
      EXPECT_EQ(hash_after(model, job(schedule, executor, ranks)), alone) << schedule << ranks;
  TestOptions recomputing = job("zb-v", executor, 2);
  recomputing.run.recompute = parse_recompute("every-3");
  EXPECT_EQ(hash_after(model, recomputing), alone);
}

INSTANTIATE_TEST_SUITE_P(Jobs,
                         TransformerBits,
                         testing::Combine(testing::Values("sequential", "ranks", "flow-graph"),
                                          testing::Values(DType::F32, DType::BF16)),
                         [](const auto& of) {
                           std::string name =
                               std::get<0>(of.param) + "_" + name_of(std::get<1>(of.param));
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Transformer, LearnsToLookThreeTokensBack) {
  TestOptions options = job("1f1b", "sequential", 2);
  options.fit.epochs = 150;
  Trainer trainer(transformer(DType::F32, 1), options.pipeline, options);
  const Dataset data = echoes();
  const double before = trainer.evaluate(data).accuracy();
  trainer.fit(data);
  EXPECT_LT(before, 0.4);
  EXPECT_GT(trainer.evaluate(data).accuracy(), 0.99);
}

}  // namespace
}  // namespace millrace::testing_training
