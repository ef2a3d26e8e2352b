// Models that are no chain of layers: bits do not depend on where they are cut, because the
// gradients of a tensor that several layers use are added in the order of those layers.
#include <map>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"
#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

constexpr std::int64_t kRows = 5;

/// Layer 0 gives what four layers use, near and far; layer 1 what two use; the model's second
/// input, ids, is used by a layer in the middle.
ModelSpec branchy(DType dtype, DType precision = DType::F32) {
  ModelSpec model;
  model.dtype = dtype;
  model.precision = precision;
  model.inputs = {{dtype, {kSamples, 6}, false}, {DType::I32, {kSamples}, false}};
  model.layers = {{"linear", {{"out", 4}, {"activation", "tanh"}}},
                  {"linear", {{"out", 4}, {"activation", "gelu"}}},
                  {"add", {}, {{0}, {1}}},
                  {"embedding", {{"rows", 5}, {"columns", 4}}, {{.index = 1}}},
                  {"layer_norm", {}, {{2}}},
                  {"add", {}, {{4}, {0}, {3}}},
                  {"linear", {{"out", 4}}, {{1}}},
                  {"add", {}, {{5}, {6}, {0}}},
                  {"linear", {{"out", 3}}}};
  model.loss = LossKind::MeanSquaredError;
  return model;
}

/// A cut model and the plain loop that runs it: one unit, every tensor routed by the edges.
class CutModel {
 public:
  CutModel(const ModelSpec& model, std::vector<int> boundaries)
      : stages_(build_stages(model, boundaries, 3)), edges_(cut_edges(model, boundaries)) {
    if (edges_.empty())
      for (int s = 0; s + 1 < std::ssize(stages_); ++s) edges_.push_back({s, 0, s + 1, 0});
    inputs_.push_back(drawn(model.dtype, {kRows, 6}, 1));
    inputs_.push_back(drawn(DType::I32, {kRows}, 2));
    targets_.push_back(drawn(model.dtype, {kRows, 3}, 3));
  }

  double run(bool recompute = false) {
    LossSum loss;
    PassContext context = training_context();
    context.targets = &targets_;
    context.loss = &loss;
    context.recompute_later = recompute;
    forward(context);
    for (std::size_t s = stages_.size(); s-- > 0;) {
      if (recompute) stages_[s]->recompute(context);
      backward(context, s);
    }
    return loss.sum;
  }

  [[nodiscard]] std::vector<Parameter*> parameters() const {
    std::vector<Parameter*> all;
    for (const auto& stage : stages_)
      for (Parameter* parameter : stage->parameters()) all.push_back(parameter);
    return all;
  }

  StageModule& stage(std::size_t s) { return *stages_[s]; }

 private:
  void forward(const PassContext& context) {
    outputs_.clear();
    outputs_.resize(stages_.size());
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      TensorList inputs = s == 0 ? copies_of(inputs_) : TensorList();
      for (std::size_t input = 0; s > 0; ++input) {
        const auto edge = std::ranges::find_if(edges_, [&](const CutEdge& e) {
          return e.to == static_cast<int>(s) && e.input == static_cast<int>(input);
        });
        if (edge == edges_.end()) break;
        inputs.push_back(
            outputs_[static_cast<std::size_t>(edge->from)][static_cast<std::size_t>(edge->output)]
                .clone());
      }
      outputs_[s] = stages_[s]->forward(context, std::move(inputs));
    }
  }

  void backward(const PassContext& context, std::size_t s) {
    TensorList given;
    for (const CutEdge& edge : edges_)  // by (from, output, to, input)
      if (edge.from == static_cast<int>(s))
        given.push_back(gradients_[{edge.to, edge.input}].clone());
    TensorList back = stages_[s]->backward_input(context, std::move(given));
    for (std::size_t i = 0; i < back.size(); ++i)
      gradients_[{static_cast<int>(s), static_cast<int>(i)}] = std::move(back[i]);
    stages_[s]->backward_weight(context);
  }

  std::vector<std::unique_ptr<StageModule>> stages_;
  std::vector<CutEdge> edges_;
  std::vector<Tensor> inputs_;
  TensorList targets_;
  std::vector<TensorList> outputs_;
  std::map<std::pair<int, int>, Tensor> gradients_;
};

std::vector<std::vector<int>> every_cut(int layers) {
  std::vector<std::vector<int>> cuts;
  for (unsigned chosen = 0; chosen < 1U << static_cast<unsigned>(layers - 1); ++chosen) {
    std::vector<int> cut{0};
    for (int b = 1; b < layers; ++b)
      if ((chosen >> static_cast<unsigned>(b - 1) & 1U) != 0) cut.push_back(b);
    cut.push_back(layers);
    cuts.push_back(cut);
  }
  return cuts;
}

/// A stage that only looks up what the model's inputs name has nothing to give a gradient to.
class BranchesIn : public testing::TestWithParam<DType> {};

TEST_P(BranchesIn, EveryPartition_SameBits) {
  const ModelSpec model = branchy(DType::F32, GetParam());
  CutModel whole(model, {0, model.layer_count()});
  const double loss = whole.run();
  const auto expected = whole.parameters();
  for (const auto& cut : every_cut(model.layer_count()))
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(testing::PrintToString(cut));
      CutModel parts(model, cut);
      EXPECT_EQ(parts.run(recompute), loss);
      const auto given = parts.parameters();
      ASSERT_EQ(given.size(), expected.size());
      for (std::size_t i = 0; i < given.size(); ++i)
        EXPECT_TRUE(same_bits(given[i]->gradient, expected[i]->gradient)) << given[i]->name;
    }
}

/// Layer 1 has weight `factor`, and its output as many users as there are weights, each multiplying
/// it by its own. The gradient of layer 0's weight, 1, after a loss whose gradient is 1: that of
/// the output of layer 1, times the factor.
float gradient_before_fan_out(const std::vector<float>& weights,
                              DType precision,
                              float factor = 1) {
  ModelSpec model;
  model.inputs = {{DType::F32, {kSamples, 1}, false}};
  model.layers = {{"linear", {{"out", 1}}}, {"linear", {{"out", 1}}}};
  LayerSpec sum{"add"};
  for (std::size_t user = 0; user < weights.size(); ++user) {
    sum.inputs.push_back({.layer = model.layer_count()});
    model.layers.push_back({"linear", {{"out", 1}}, {{1}}});
  }
  model.layers.push_back(sum);
  model.loss = LossKind::MeanSquaredError;
  model.precision = precision;
  const auto stage = build_stage(model, std::vector<int>{0, model.layer_count()}, 0, 1);
  std::vector<float> of_layer{0, factor};
  of_layer.insert(of_layer.end(), weights.begin(), weights.end());
  for (std::size_t layer = 0; layer < of_layer.size(); ++layer)
    stage->parameters()[2 * layer]->value.as<float>()[0] = of_layer[layer];
  const auto one = [](float value) {
    Tensor tensor(DType::F32, {1, 1});
    tensor.as<float>()[0] = value;
    return TensorList(std::move(tensor));
  };
  const TensorList targets = one(-0.5F);
  PassContext context;
  context.targets = &targets;
  (void)stage->forward(context, one(1));
  (void)stage->backward(context, {});
  return stage->parameters()[0]->gradient.as<float>()[0];
}

/// (1 + 1e8) - 1e8 is 0 in f32, and in the other direction 1.
TEST(Branches, Gradients_AreAddedByLayerOrder) {
  EXPECT_EQ(gradient_before_fan_out({1.0F, 1e8F, -1e8F}, DType::F32), 0.0F);
  EXPECT_EQ(gradient_before_fan_out({-1e8F, 1e8F, 1.0F}, DType::F32), 1.0F);
}

/// In bf16 1 + 2^-7 follows 1, and what lies half way between them becomes 1.
TEST(Branches, LowPrecisionGradients_AreAddedInF32) {
  constexpr float kHalf = 1.0F / 256;
  EXPECT_EQ(gradient_before_fan_out({1.0F, kHalf, kHalf}, DType::BF16), 1.0F + 2 * kHalf);
  // 1.25 (1 + 2^-8) would become the number of bf16 after 1.25.
  EXPECT_EQ(gradient_before_fan_out({1.0F, kHalf}, DType::BF16, 1.25F), 1.25F);
  EXPECT_EQ(gradient_before_fan_out({1.0F, kHalf}, DType::F32, 1.25F), 1.25F * (1.0F + kHalf));
}

TEST(Branches, GradientsAreTheCentralDifferences) {
  const ModelSpec model = branchy(DType::F64);
  CutModel parts(model, {0, 2, 5, 7, 9});
  parts.run();
  std::vector<Tensor> actual;
  for (const Parameter* parameter : parts.parameters())
    actual.push_back(parameter->gradient.clone());
  for (std::size_t i = 0; i < actual.size(); ++i)
    expect_central_differences(
        parts.parameters()[i]->value,
        actual[i],
        [&] { return parts.run(); },
        parts.parameters()[i]->name);
}

TEST(Branches, Edges_AreNumberedByTheirLayers) {
  const ModelSpec model = branchy(DType::F32);
  EXPECT_THAT(cut_edges(model, std::vector<int>{0, 2, 5, 9}),
              testing::ElementsAre(CutEdge{0, 0, 1, 2},    // the ids, to layer 3
                                   CutEdge{0, 1, 1, 0},    // layer 0 to layer 2
                                   CutEdge{0, 1, 2, 1},    // layer 0 to layer 5
                                   CutEdge{0, 1, 2, 4},    // layer 0 to layer 7
                                   CutEdge{0, 2, 1, 1},    // layer 1 to layer 2
                                   CutEdge{0, 2, 2, 3},    // layer 1 to layer 6
                                   CutEdge{1, 0, 2, 2},    // layer 3 to layer 5
                                   CutEdge{1, 1, 2, 0}));  // layer 4 to layer 5
  EXPECT_TRUE(cut_edges(parse_model("mlp:4-5-6-7"), std::vector<int>{0, 1, 3}).empty());
}

TEST_P(BranchesIn, CountedStashIsThePredictedOne) {
  const ModelSpec model = branchy(DType::F32, GetParam());
  CutModel whole(model, {0, model.layer_count()});
  for (const bool recompute : {false, true}) {
    StashMeter meter;
    PassContext context = training_context();
    const TensorList targets(drawn(DType::F32, {kRows, 3}, 3));
    context.targets = &targets;
    context.meter = &meter;
    context.recompute_later = recompute;
    TensorList inputs(drawn(DType::F32, {kRows, 6}, 1));
    inputs.push_back(drawn(DType::I32, {kRows}, 2));
    const StashBytes bytes = whole.stage(0).stash_bytes({.samples = kRows}, recompute);
    (void)whole.stage(0).forward(context, std::move(inputs));
    EXPECT_EQ(meter.bytes, bytes.after_forward);
    meter.peak = meter.bytes;
    if (recompute) whole.stage(0).recompute(context);
    (void)whole.stage(0).backward_input(context, {});
    EXPECT_EQ(meter.peak, bytes.input_peak);
    EXPECT_EQ(meter.bytes, bytes.after_input);
    whole.stage(0).backward_weight(context);
    EXPECT_EQ(meter.bytes, 0U);
  }
}

/// Runs of chosen layers, numbered: what StageModule::recompute_in takes.
std::vector<int> segments_of(unsigned chosen, int first, int last) {
  std::vector<int> segments;
  int next = 0;
  for (int layer = first; layer < last; ++layer) {
    const bool again = (chosen >> static_cast<unsigned>(layer) & 1U) != 0;
    const bool before = !segments.empty() && segments.back() != StageModule::kKept;
    segments.push_back(again ? (before ? next - 1 : next++) : StageModule::kKept);
  }
  return segments;
}

TEST_P(BranchesIn, RecomputeOfAnyLayers_HasSameBits) {
  const ModelSpec model = branchy(DType::F32, GetParam());
  CutModel whole(model, {0, model.layer_count()});
  const double loss = whole.run();
  for (const auto& cut : std::vector<std::vector<int>>{{0, 9}, {0, 3, 5, 9}}) {
    for (unsigned chosen = 0; chosen < 512; ++chosen) {
      SCOPED_TRACE(chosen);
      CutModel parts(model, cut);
      for (std::size_t s = 0; s + 1 < cut.size(); ++s)
        parts.stage(s).recompute_in(segments_of(chosen, cut[s], cut[s + 1]));
      EXPECT_EQ(parts.run(true), loss);
      const auto given = parts.parameters();
      for (std::size_t i = 0; i < given.size(); ++i)
        ASSERT_TRUE(same_bits(given[i]->gradient, whole.parameters()[i]->gradient))
            << given[i]->name;
    }
  }
}

TEST_P(BranchesIn, CountedStash_IsPredicted) {
  const ModelSpec model = branchy(DType::F32, GetParam());
  CutModel whole(model, {0, model.layer_count()});
  StageModule& stage = whole.stage(0);
  for (unsigned chosen = 0; chosen < 512; ++chosen) {
    SCOPED_TRACE(chosen);
    stage.recompute_in(chosen == 511 ? std::vector<int>{0, 0, 0, 1, 1, 2, 3, 3, 4}
                                     : segments_of(chosen, 0, 9));
    StashMeter meter;
    PassContext context = training_context();
    const TensorList targets(drawn(DType::F32, {kRows, 3}, 3));
    context.targets = &targets;
    context.meter = &meter;
    context.recompute_later = true;
    TensorList inputs(drawn(DType::F32, {kRows, 6}, 1));
    inputs.push_back(drawn(DType::I32, {kRows}, 2));
    const StashBytes bytes = stage.stash_bytes({.samples = kRows}, true);
    (void)stage.forward(context, std::move(inputs));
    EXPECT_EQ(meter.bytes, bytes.after_forward);
    meter.peak = meter.bytes;
    stage.recompute(context);
    EXPECT_EQ(meter.bytes, bytes.after_recompute);
    (void)stage.backward_input(context, {});
    EXPECT_EQ(meter.peak, bytes.input_peak);
    EXPECT_EQ(meter.bytes, bytes.after_input);
    stage.backward_weight(context);
    EXPECT_EQ(meter.bytes, 0U);
  }
}

TEST(Branches, SegmentsThatAreNoneAreRefused) {
  const auto stage = build_stage(parse_model("mlp:4-4-4-4"), std::vector<int>{0, 3}, 0, 1);
  EXPECT_THROW(stage->recompute_in({0, 0}), InvalidArgument);
  EXPECT_THROW(stage->recompute_in({0, 2, 2}), InvalidArgument);
  EXPECT_THROW(stage->recompute_in({0, StageModule::kKept, 0}), InvalidArgument);
  EXPECT_THROW(stage->recompute_in({1, 0, 0}), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Precisions,
                         BranchesIn,
                         testing::Values(DType::F32, DType::BF16, DType::F16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

TEST(Branches, AnOutputThatNobodyUsesIsNamed) {
  ModelSpec model = branchy(DType::F32);
  model.layers[7].inputs.pop_back();
  model.layers[7].inputs[1] = {.layer = 0};
  EXPECT_THAT(
      [&] {
        (void)build_stages(model, std::vector<int>{0, 9}, 1);
      },
      testing::ThrowsMessage<InvalidArgument>(
          "output 0 of \"layers.6: linear 4->4\" is not used by any layer"));
}

}  // namespace
}  // namespace millrace::test
