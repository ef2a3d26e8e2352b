// The stage module: same bits however a model is cut, passes in turn, stash bytes as predicted.
#include "millrace/stages/module.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"
#include "stages/kernels/backends.hpp"
#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

using Stages = std::vector<std::unique_ptr<StageModule>>;

constexpr int kUnits = 3;
constexpr std::int64_t kRows = 6;

ModelSpec model_of(const char* text, DType dtype = DType::F32) {
  ModelSpec model = parse_model(text);
  model.dtype = dtype;
  model.inputs[0].dtype = dtype;
  return model;
}

Stages cut(const ModelSpec& model, int stages) {
  Stages cut = build_stages(model, even_boundaries(model.layer_count(), stages), 42);
  for (auto& stage : cut) stage->reserve(kUnits, 1);
  return cut;
}

TensorList class_targets(std::int64_t rows, int classes) {
  Tensor targets(DType::I32, {rows});
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i)
    targets.as<std::int32_t>()[i] = static_cast<std::int32_t>(i) % classes;
  return TensorList(std::move(targets));
}

enum class Way { Split, Fused, Recompute };

/// Forward of all units, then their backwards: GPipe by hand.
LossSum run_step(const Stages& stages, const ModelSpec& model, Way way) {
  LossSum loss;
  const TensorList targets = class_targets(kRows, static_cast<int>(model.output_columns()));
  const auto context_of = [&](int unit) {
    PassContext context = training_context();
    context.micro_batch = MicroBatch{unit};
    context.first_sample = unit * kRows;
    context.loss_scale = 1.0 / (kUnits * kRows);
    context.targets = &targets;
    context.recompute_later = way == Way::Recompute;
    context.loss = &loss;
    return context;
  };
  for (int unit = 0; unit < kUnits; ++unit) {
    TensorList flow(
        drawn(model.dtype, {kRows, model.input_columns()}, 20U + static_cast<std::uint32_t>(unit)));
    for (const auto& stage : stages) flow = stage->forward(context_of(unit), std::move(flow));
    EXPECT_TRUE(flow.empty());
  }
  for (int unit = 0; unit < kUnits; ++unit) {
    TensorList flow;
    for (std::size_t s = stages.size(); s-- > 0;) {
      const PassContext context = context_of(unit);
      if (way == Way::Recompute) stages[s]->recompute(context);
      if (way == Way::Fused) {
        flow = stages[s]->backward(context, std::move(flow));
        continue;
      }
      flow = stages[s]->backward_input(context, std::move(flow));
    }
    EXPECT_TRUE(flow.empty());
  }
  if (way != Way::Fused)
    for (int unit = 0; unit < kUnits; ++unit)
      for (const auto& stage : stages) stage->backward_weight(context_of(unit));
  return loss;
}

std::vector<Parameter*> all_parameters(const Stages& stages) {
  std::vector<Parameter*> all;
  for (const auto& stage : stages)
    for (Parameter* parameter : stage->parameters()) all.push_back(parameter);
  return all;
}

void expect_same_parameters(const Stages& one, const Stages& other) {
  const auto left = all_parameters(one);
  const auto right = all_parameters(other);
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i]->name, right[i]->name);
    EXPECT_TRUE(same_bits(left[i]->value, right[i]->value)) << left[i]->name;
    EXPECT_TRUE(same_bits(left[i]->gradient, right[i]->gradient)) << left[i]->name;
  }
}

constexpr const char* kEveryKind = "mlp:20-33-17-24-10,gelu,norm,dropout=0.3";

TEST(StageModule, EveryPartition_SameGradientBits) {
  for (const char* text : {kEveryKind, "mlp:20-33-17-24-10", "mlp:20-33-17-24-10,tanh"})
    for (const DType dtype : {DType::F32, DType::F64}) {
      const ModelSpec model = model_of(text, dtype);
      const Stages whole = cut(model, 1);
      const LossSum expected = run_step(whole, model, Way::Fused);
      for (int stages = 1; stages <= model.layer_count(); ++stages)
        for (const Way way : {Way::Split, Way::Fused, Way::Recompute}) {
          const Stages parts = cut(model, stages);
          const LossSum loss = run_step(parts, model, way);
          EXPECT_EQ(loss.sum, expected.sum);
          EXPECT_EQ(loss.weight, kUnits * kRows);
          EXPECT_EQ(loss.correct, expected.correct);
          expect_same_parameters(whole, parts);
        }
    }
}

TEST(StageModule, WholeModelGradientIsTheCentralDifference) {
  const ModelSpec model = model_of("mlp:5-6-4-3,gelu,norm,dropout=0.2", DType::F64);
  const Stages stages = cut(model, 2);
  run_step(stages, model, Way::Split);
  const auto parameters = all_parameters(stages);
  std::vector<Tensor> actual;  // the probes below continue to accumulate
  for (const Parameter* parameter : parameters) actual.push_back(parameter->gradient.clone());
  const auto mean = [&] { return run_step(stages, model, Way::Split).sum / (kUnits * kRows); };
  for (std::size_t i = 0; i < parameters.size(); ++i)
    expect_central_differences(parameters[i]->value, actual[i], mean, parameters[i]->name);
}

TEST(StageModule, CountedStashIsThePredictedOne) {
  const ModelSpec model = model_of(kEveryKind);
  for (int stages = 1; stages <= 4; ++stages)
    for (const bool recompute : {false, true}) {
      const Stages parts = cut(model, stages);
      const TensorList targets = class_targets(kRows, 10);
      StashMeter meter;
      PassContext context = training_context();
      context.targets = &targets;
      context.recompute_later = recompute;
      std::vector<StashBytes> predicted;
      TensorList flow(drawn(DType::F32, {kRows, 20}, 1));
      for (const auto& part : parts) {
        predicted.push_back(part->stash_bytes({.samples = kRows}, recompute));
        meter = {};
        context.meter = &meter;
        flow = part->forward(context, std::move(flow));
        EXPECT_EQ(meter.bytes, predicted.back().after_forward);
        EXPECT_EQ(meter.peak, predicted.back().after_forward);
      }
      for (std::size_t s = parts.size(); s-- > 0;) {
        meter = {predicted[s].after_forward, predicted[s].after_forward};
        if (recompute) parts[s]->recompute(context);
        flow = parts[s]->backward_input(context, std::move(flow));
        EXPECT_EQ(meter.peak, predicted[s].input_peak);
        EXPECT_EQ(meter.bytes, predicted[s].after_input);
        parts[s]->backward_weight(context);
        EXPECT_EQ(meter.bytes, 0U);
        EXPECT_EQ(parts[s]->stashed_units(), 0U);
      }
    }
}

TEST(StageModule, EvaluationReturnsPredictionsAndStashesNothing) {
  const ModelSpec model = model_of("mlp:4-6-3");
  const Stages stages = cut(model, 1);
  LossSum loss;
  const TensorList targets = class_targets(2, 3);
  StashMeter meter;
  PassContext context;
  context.training = false;
  context.meter = &meter;
  context.loss = &loss;

  const TensorList quiet = stages[0]->forward(context, TensorList(drawn(DType::F32, {2, 4}, 1)));
  EXPECT_EQ(loss.weight, 0);
  context.targets = &targets;
  const TensorList actual = stages[0]->forward(context, TensorList(drawn(DType::F32, {2, 4}, 1)));

  EXPECT_EQ(quiet[0].dims(), (Dims{2, 3}));
  EXPECT_TRUE(same_bits(quiet[0], actual[0]));
  EXPECT_EQ(loss.weight, 2);
  EXPECT_EQ(meter.peak, 0U);
  EXPECT_EQ(stages[0]->stashed_units(), 0U);
}

TEST(StageModule, Bits_IgnoreAlignmentOfRows) {
  const ModelSpec model = model_of("mlp:7-6-3");
  const Stages stages = cut(model, 1);
  PassContext context;
  context.training = false;
  Tensor many = drawn(DType::F32, {9, 7}, 1);
  const Tensor lying = many.borrow_rows(3, 4);
  const TensorList one = stages[0]->forward(context, TensorList(many.borrow_rows(3, 4)));
  const TensorList two = stages[0]->forward(context, TensorList(lying.clone()));
  EXPECT_TRUE(same_bits(one[0], two[0]));
}

TEST(StageModule, PassesOutOfTurnAreRefused) {
  const Stages stages = cut(model_of("mlp:4-6-3"), 2);
  StageModule& stage = *stages[0];
  const PassContext context;
  const auto input = [] { return TensorList(drawn(DType::F32, {2, 4}, 1)); };
  EXPECT_THROW(stage.backward_weight(context), InvalidArgument);
  EXPECT_THROW((void)stage.backward_input(context, TensorList(drawn(DType::F32, {2, 6}, 1))),
               InvalidArgument);
  (void)stage.forward(context, input());
  EXPECT_THROW((void)stage.forward(context, input()), InvalidArgument);
  EXPECT_EQ(stage.stashed_units(), 1U);

  PassContext beyond;
  beyond.micro_batch = MicroBatch{kUnits};
  EXPECT_THROW((void)stage.forward(beyond, input()), InvalidArgument);
}

TEST(StageModule, WorksAgainAfterAnAbandonedStep) {
  const ModelSpec model = model_of(kEveryKind);
  const Stages fresh = cut(model, 2);
  const Stages used = cut(model, 2);
  (void)used[0]->forward(training_context(), TensorList(drawn(DType::F32, {kRows, 20}, 1)));
  for (const auto& stage : used) stage->abandon_step();
  EXPECT_EQ(used[0]->stashed_units(), 0U);

  run_step(fresh, model, Way::Split);
  run_step(used, model, Way::Split);

  expect_same_parameters(fresh, used);
}

/// Passes on what it is given, and notes which signals may interrupt it.
class Watcher final : public Layer {
 public:
  explicit Watcher(std::vector<std::set<int>>& seen) : seen_(seen) {}

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    return {inputs[0]};
  }
  TensorList forward(const PassContext&, TensorList inputs, Stash&) override {
    seen_.push_back(unblocked_signals());
    return inputs;
  }
  TensorList backward_input(const PassContext&, TensorList gradients, Stash&, bool) override {
    seen_.push_back(unblocked_signals());
    return gradients;
  }
  void backward_weight(const PassContext&, Stash&) override {
    seen_.push_back(unblocked_signals());
  }
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType>) const override { return {}; }
  [[nodiscard]] std::string describe() const override { return "watcher"; }

 private:
  std::vector<std::set<int>>& seen_;
};

TEST(StageModule, Passes_BlockAllSignalsButThoseOfFaults) {
  std::vector<std::set<int>> seen;
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(std::make_unique<Watcher>(seen));
  StageModule stage(
      std::move(layers), chain_wiring({DType::F32, {kSamples, 4}}, 1), StageModule::Settings());
  stage.reserve(1, 1);
  PassContext context;
  context.recompute_later = true;
  const auto rows = [] { return TensorList(drawn(DType::F32, {2, 4}, 1)); };
  const std::set<int> before = unblocked_signals();

  stage.forward(context, rows());
  stage.recompute(context);
  stage.backward(context, rows());
  stage.forward({}, rows());
  stage.backward_input({}, rows());
  stage.backward_weight({});

  // Nothing blocks SIGKILL and SIGSTOP.
  const std::set<int> left = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP};
  EXPECT_THAT(seen, testing::SizeIs(7));
  EXPECT_THAT(seen, testing::Each(kOneDnn ? left : before));
  EXPECT_EQ(unblocked_signals(), before);
}

TEST(StageModule, LayersThatDoNotFitAreNamed) {
  const TensorType rows{DType::F32, {kSamples, 4}, false};
  const TensorType wider{DType::F32, {kSamples, 5}};
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(build_layer({"linear", {{"out", 6}}}, {&rows, 1}, {.number = 0}));
  layers.push_back(build_layer({"linear", {{"out", 3}}}, {&wider, 1}, {.number = 1}));
  EXPECT_THAT([&] { StageModule(std::move(layers), chain_wiring(rows, 2), {}); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(
                  "layers.1: linear 5->3 takes f32 rows of 5, got f32 [samples, 6]")));
}

TEST(StageModule, WiringOfUnknownTensor_IsRejected) {
  const TensorType rows{DType::F32, {kSamples, 4}, false};
  using Source = StageWiring::Source;
  for (const Source& wrong : {Source{.layer = 1},
                              {.layer = 0, .index = 1},
                              {.index = 1},
                              {.index = -1},
                              {.layer = -2},
                              {.layer = 0, .index = -1}}) {
    const auto module_with = [&](StageWiring wiring) {
      std::vector<std::unique_ptr<Layer>> layers;
      for (std::uint32_t i = 0; i < 2; ++i)
        layers.push_back(build_layer({"linear", {{"out", 4}}}, {&rows, 1}, {.number = i}));
      StageModule(std::move(layers), std::move(wiring), {});
    };
    StageWiring takes = chain_wiring(rows, 2);
    takes.layer_inputs[1] = {wrong};
    EXPECT_THROW(module_with(takes), InvalidArgument);
    StageWiring gives = chain_wiring(rows, 2);
    gives.outputs = {wrong == Source{.layer = 1} ? Source{.layer = 2} : wrong};
    EXPECT_THROW(module_with(gives), InvalidArgument);
    EXPECT_NO_THROW(module_with(chain_wiring(rows, 2)));
  }
}

}  // namespace
}  // namespace millrace::test
