// Models of any shape through the Trainer: token ids in sequences that are cut into slices, targets
// with weights, tensors that several layers use. Every schedule, executor and cut gives the bits of
// a plain loop.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "training/first_digits.hpp"

namespace millrace {
namespace {

constexpr std::int64_t kSamplesInAll = 22;
constexpr std::int64_t kLength = 9;
constexpr std::int64_t kTokens = 6;
constexpr int kFourMicroBatches = 4;

Tensor drawn_ids(std::uint32_t stream) {
  Tensor ids(DType::I32, {kSamplesInAll, kLength});
  std::uint32_t i = 0;
  for (std::int32_t& id : ids.as<std::int32_t>())
    id = static_cast<std::int32_t>(
        random_below({.seed = 4, .layer = stream}, i++, static_cast<std::uint32_t>(kTokens)));
  return ids;
}

/// Sequences of token ids with a class per position; every fifth position does not count.
Dataset sequences() {
  Dataset data;
  data.name = "sequences";
  data.inputs.push_back({"tokens", drawn_ids(1), true});
  data.targets.push_back({"next tokens", drawn_ids(2), true});
  Tensor weights(DType::F32, {kSamplesInAll, kLength});
  for (std::size_t i = 0; i < weights.as<float>().size(); ++i)
    weights.as<float>()[i] = i % 5 == 0 ? 0.0F : 1.0F;
  data.targets.push_back({"weights", std::move(weights), true});
  data.classes = kTokens;
  return data;
}

/// A causal model whose first layer's output is used by layers 1, 4 and 8, and whose ids a layer in
/// the middle looks up again.
ModelSpec causal_model() {
  ModelSpec model;
  model.inputs = {{DType::I32, {kSamples, kPositions}, false}};
  model.layers = {{"embedding", {{"rows", kTokens}, {"columns", 8}}},
                  {"running_mean"},
                  {"linear", {{"out", 8}, {"activation", "tanh"}}},
                  {"dropout", {{"rate", 0.2}}},
                  {"add", {}, {{0}, {3}}},
                  {"embedding", {{"rows", kTokens}, {"columns", 8}}, {{}}},
                  {"layer_norm", {}, {{4}}},
                  {"running_mean"},
                  {"add", {}, {{7}, {0}, {5}}},
                  {"linear", {{"out", kTokens}}}};
  return model;
}

TestOptions options_for(const std::string& schedule, int ranks, int slices) {
  TestOptions options;
  options.pipeline.schedule = schedule;
  options.pipeline.shape.ranks = ranks;
  if (slices > 1) options.pipeline.shape.slices = slices;
  options.pipeline.shape.micro_batches = kFourMicroBatches;
  options.fit.batch_size = kSamplesInAll;
  options.step.learning_rate = {.base = 1e-2};
  options.step.clip_norm = 0.4;
  options.run.deadline = std::chrono::seconds(60);
  return options;
}

/// Gradients of one mini-batch by a loop over its units: slices forward, then backward from the
/// last.
std::vector<std::vector<float>> plain_gradients(int slices) {
  const ModelSpec spec = causal_model();
  const auto model = build_stage(spec, std::vector<int>{0, spec.layer_count()}, 0, 1);
  model->reserve(kFourMicroBatches, slices);
  const Dataset data = sequences();
  Batch batch(data, kFourMicroBatches, slices);
  double weight = 0;
  for (const float w : data.targets[1].values.as<float>()) weight += static_cast<double>(w);
  const auto context_of = [&](int micro_batch, int slice) {
    PassContext context;
    context.seed = 1;
    context.micro_batch = MicroBatch{micro_batch};
    context.slice = Slice{slice};
    context.slices = slices;
    context.first_sample = batch.first_sample(context.unit());
    context.first_position = batch.first_position(context.unit());
    context.loss_scale = 1 / weight;
    return context;
  };
  for (int i = 0; i < kFourMicroBatches; ++i) {
    for (int slice = 0; slice < slices; ++slice) {
      PassContext context = context_of(i, slice);
      const TensorList targets = batch.targets(context.unit());
      context.targets = &targets;
      static_cast<void>(model->forward(context, batch.inputs(context.unit())));
    }
    for (int slice = slices; slice-- > 0;)
      static_cast<void>(model->backward(context_of(i, slice), {}));
  }
  std::vector<Parameter*> parameters = model->parameters();
  std::ranges::sort(parameters, {}, &Parameter::name);
  std::vector<std::vector<float>> gradients;
  for (const Parameter* parameter : parameters) {
    const auto values = parameter->gradient.as<float>();
    gradients.emplace_back(values.begin(), values.end());
  }
  return gradients;
}

std::vector<std::vector<float>> first_gradients(const TestOptions& options) {
  Trainer trainer(causal_model(), options.pipeline, options);
  std::vector<std::vector<float>> gradients;
  trainer.before_update = [&](std::span<Parameter* const> parameters) {
    for (const Parameter* parameter : parameters) {
      const auto values = parameter->gradient.as<float>();
      gradients.emplace_back(values.begin(), values.end());
    }
  };
  const Dataset data = sequences();
  Batch batch(data, kFourMicroBatches, options.pipeline.shape.slices.value_or(1));
  static_cast<void>(trainer.step(batch));
  return gradients;
}

/// Named after its executor, for those that leave some out.
class AnyShapeOn : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Executors,
                         AnyShapeOn,
                         testing::Values("sequential", "flow_graph", "ranks"),
                         [](const auto& tested) { return tested.param; });

std::string executor_named(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

TEST_P(AnyShapeOn, Slices_HaveGradientsOfPlainLoop) {
  struct Case {
    const char* schedule;
    int ranks, slices;
    std::optional<int> chunks = {};
  };
  for (const Case& of : {Case{"seq-1f1b", 3, 3},
                         Case{"terapipe", 4, 2},
                         Case{"seqpipe", 2, 3, 2},
                         Case{"seq-vpp", 2, 2, 2},
                         Case{"seq-smart-vpp", 2, 2, 2}})
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(std::string(of.schedule) + (recompute ? ", recompute" : ""));
      TestOptions options = options_for(of.schedule, of.ranks, of.slices);
      options.pipeline.shape.chunks = of.chunks;
      options.run.executor = executor_named(GetParam());
      if (recompute) options.run.recompute = {.kind = RecomputeKind::All};
      EXPECT_EQ(first_gradients(options), plain_gradients(of.slices));
    }
}

TEST_P(AnyShapeOn, Branches_HaveGradientsOfPlainLoop) {
  const auto expected = plain_gradients(1);
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved", "zb-v"}) {
    SCOPED_TRACE(schedule);
    TestOptions options = options_for(schedule, 3, 1);
    options.run.executor = executor_named(GetParam());
    if (options.pipeline.schedule == "interleaved") options.pipeline.shape.chunks = 2;
    if (options.pipeline.schedule == "interleaved" || options.pipeline.schedule == "zb-v")
      options.pipeline.shape.ranks = 2;
    EXPECT_EQ(first_gradients(options), expected);
  }
  for (const std::vector<int>& cut : {std::vector<int>{1, 5}, {4, 6}, {8, 9}}) {
    TestOptions options = options_for("1f1b", 3, 1);
    options.run.executor = executor_named(GetParam());
    options.pipeline.boundaries = cut;
    EXPECT_EQ(first_gradients(options), expected) << testing::PrintToString(cut);
  }
}

TEST_P(AnyShapeOn, Training_HasWeightsOfOneRank) {
  const Dataset data = sequences();
  const auto trained = [&](TestOptions options) {
    options.fit.batch_size = 10;  // the last mini-batch has 2 samples for 4 micro-batches
    options.fit.epochs = 3;
    Trainer trainer(causal_model(), options.pipeline, options);
    trainer.fit(data);
    const Score score = trainer.evaluate(data, 7);
    EXPECT_EQ(score.loss.evaluated, 158);  // of 198 positions the 40 of weight 0 are not looked at
    return trainer.weights_hash() + " " + std::to_string(score.mean_loss());
  };
  TestOptions alone = options_for("seq-1f1b", 1, 3);
  alone.run.executor = "sequential";
  TestOptions cut = options_for("seq-1f1b", 4, 3);
  cut.run.executor = executor_named(GetParam());
  EXPECT_EQ(trained(cut), trained(alone));
}

TEST_P(AnyShapeOn, CountedStashBytes_ArePredicted) {
  for (const bool recompute : {false, true})
    for (const int slices : {1, 3}) {
      TestOptions options = options_for("seq-1f1b", 3, slices);
      options.run.executor = executor_named(GetParam());
      if (recompute) options.run.recompute = {.kind = RecomputeKind::All};
      if (slices == 1) options.pipeline.schedule = "1f1b";
      Trainer trainer(causal_model(), options.pipeline, options);
      const Dataset data = sequences();
      Batch batch(data, kFourMicroBatches, slices);
      EXPECT_EQ(trainer.step(batch).peak_stash_bytes,
                predict_stash_peaks(trainer.executor().program(),
                                    trainer.stages(),
                                    unit_sizes(kSamplesInAll, kLength, kFourMicroBatches, slices)))
          << "recompute " << recompute << ", slices " << slices;
    }
}

TEST(AnyShape, PredictionsOfSlicesAreJoined) {
  const Dataset data = sequences();
  Trainer sliced = trainer_of(causal_model(), options_for("seq-1f1b", 2, 3));
  Trainer whole = trainer_of(causal_model(), options_for("1f1b", 2, 1));
  const Tensor parts = sliced.predict(data, 10);
  const Tensor all = whole.predict(data, 10);
  ASSERT_EQ(parts.dims(), (Dims{kSamplesInAll, kLength, kTokens}));
  ASSERT_EQ(all.dims(), parts.dims());
  for (std::size_t i = 0; i < all.as<float>().size(); ++i)
    ASSERT_NEAR(parts.as<float>()[i], all.as<float>()[i], 1e-5);
}

TEST(AnyShape, SamplesWithoutASequenceCannotBeSliced) {
  const Dataset data = testing_training::first_digits(8);
  EXPECT_THAT([&] { Batch(data, 2, 2); },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::HasSubstr("have 1 position, which cannot be cut into 2 slices")));
  Dataset labelled = sequences();
  labelled.targets[0].sequence = false;
  EXPECT_THAT(
      [&] { Batch(labelled, 2, 2); },
      testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("'next tokens' is no sequence")));
  EXPECT_THAT([&] { Batch(sequences(), 2, 10); },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::HasSubstr("have 9 positions, which cannot be cut into 10 slices")));
}

TEST(AnyShape, AProgramWithOtherEdgesIsRefused) {
  Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  program.shape.edges = {{Stage{0}, 0, Stage{1}, 0}, {Stage{0}, 1, Stage{1}, 1}};
  EXPECT_THAT([&] { Trainer(parse_model("mlp:64-8-10"), {program}); },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::HasSubstr("not those of the model at this cut")));
}

}  // namespace
}  // namespace millrace
