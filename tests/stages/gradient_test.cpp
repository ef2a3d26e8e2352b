// Every layer's and loss's derivatives against central differences in double, and what the layer
// contract promises of every layer: stash bytes as declared, an untouched input, an empty end.
#include <gtest/gtest.h>

#include "millrace/stages/activation.hpp"
#include "millrace/stages/dropout.hpp"
#include "millrace/stages/layer_norm.hpp"
#include "millrace/stages/linear.hpp"
#include "millrace/stages/loss.hpp"
#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

using Layers = std::vector<std::unique_ptr<Layer>>;

/// Every kind of layer, in every form, 7 columns in.
Layers every_layer(DType dtype) {
  Layers layers;
  for (const Activation f :
       {Activation::None, Activation::Relu, Activation::Gelu, Activation::Tanh}) {
    layers.push_back(std::make_unique<Linear>(
        Linear::Settings{.in = 7, .out = 5, .activation = f, .dtype = dtype, .layer = 2}));
    layers.push_back(std::make_unique<ActivationLayer>("layers.3", f, 7, dtype));
  }
  layers.push_back(
      std::make_unique<Linear>(Linear::Settings{.in = 7, .out = 1, .dtype = dtype, .layer = 4}));
  layers.push_back(
      std::make_unique<LayerNorm>(LayerNorm::Settings{.columns = 7, .dtype = dtype, .layer = 5}));
  layers.push_back(std::make_unique<Dropout>(
      Dropout::Settings{.columns = 7, .rate = 0.4, .dtype = dtype, .layer = 6}));
  return layers;
}

TEST(EveryLayer, BackwardInputAndBackwardWeightAreTheCentralDifferences) {
  for (const auto& layer : every_layer(DType::F64))
    for (const std::int64_t rows : {1, 4}) expect_right_gradients(*layer, rows);
}

TEST(EveryLayer, SinglePrecisionFollowsDouble) {
  Layers singles = every_layer(DType::F32);
  Layers doubles = every_layer(DType::F64);
  for (std::size_t k = 0; k < singles.size(); ++k) {
    Stash single_stash;
    Stash double_stash;
    randomize_parameters(*singles[k]);
    randomize_parameters(*doubles[k]);
    const PassContext context = training_context();
    const Tensor single = singles[k]->forward(context, drawn(DType::F32, {6, 7}, 1), single_stash);
    const Tensor exact = doubles[k]->forward(context, drawn(DType::F64, {6, 7}, 1), double_stash);
    for (std::size_t i = 0; i < exact.as<double>().size(); ++i)
      EXPECT_NEAR(single.as<float>()[i], exact.as<double>()[i], 2e-6) << singles[k]->describe();
  }
}

TEST(EveryLayer, StashesWhatItDeclaresAndEndsEmpty) {
  for (const auto& layer : every_layer(DType::F32)) {
    StashMeter meter;
    PassContext context = training_context();
    context.meter = &meter;
    Stash stash;
    Tensor input = drawn(DType::F32, {3, 7}, 1);
    const Tensor before = input.clone();
    Tensor given(DType::F32, input.dims(), input.data(), nullptr, nullptr);

    const Tensor output = layer->forward(context, std::move(given), stash);
    EXPECT_EQ(meter.bytes, layer->bytes_after_forward(3)) << layer->describe();
    const Tensor result = layer->backward_input(context, output.clone(), stash, true);
    EXPECT_EQ(meter.bytes, layer->bytes_after_input(3)) << layer->describe();
    EXPECT_EQ(meter.peak, std::max(layer->bytes_after_forward(3), layer->bytes_after_input(3)))
        << layer->describe();
    layer->backward_weight(context, stash);

    EXPECT_EQ(meter.bytes, 0U) << layer->describe();
    EXPECT_EQ(stash.size() * layer->parameters().size(), 0U) << layer->describe();
    EXPECT_TRUE(same_bits(input, before)) << layer->describe();
  }
}

TEST(EveryLayer, KeepsNothingInEvaluation) {
  for (const auto& layer : every_layer(DType::F32)) {
    PassContext context = training_context();
    context.training = false;
    Stash stash;
    (void)layer->forward(context, drawn(DType::F32, {3, 7}, 1), stash);
    EXPECT_EQ(stash.size(), 0U) << layer->describe();
  }
}

TEST(EveryLayer, GivesNoInputGradientWhereNobodyWantsOne) {
  for (const auto& layer : every_layer(DType::F32)) {
    Stash stash;
    const PassContext context = training_context();
    Tensor output = layer->forward(context, drawn(DType::F32, {3, 7}, 1), stash);
    EXPECT_FALSE(layer->backward_input(context, std::move(output), stash, false));
    layer->backward_weight(context, stash);
  }
}

TEST(EveryLayer, RefusesAnotherWidthDtypeOrAlignment) {
  for (const auto& layer : every_layer(DType::F32)) {
    Stash stash;
    const PassContext context = training_context();
    EXPECT_THROW((void)layer->forward(context, drawn(DType::F32, {3, 8}, 1), stash),
                 InvalidArgument);
    EXPECT_THROW((void)layer->forward(context, drawn(DType::F64, {3, 7}, 1), stash),
                 InvalidArgument);
    EXPECT_THROW((void)layer->forward(context, Tensor(), stash), InvalidArgument);
    Tensor whole = drawn(DType::F32, {3, 7}, 1);
    EXPECT_THROW((void)layer->forward(context, whole.borrow_rows(1, 2), stash), InvalidArgument);
    EXPECT_EQ(stash.size(), 0U);
  }
}

TEST(EveryLayer, TakesAMicroBatchWithoutRows) {
  for (const auto& layer : every_layer(DType::F32)) {
    Stash stash;
    const PassContext context = training_context();
    Tensor output = layer->forward(context, Tensor(DType::F32, {0, 7}), stash);
    EXPECT_EQ(output.rows(), 0);
    EXPECT_EQ(layer->backward_input(context, std::move(output), stash, true).rows(), 0);
    layer->backward_weight(context, stash);
    for (const Parameter* parameter : layer->parameters())
      for (const float g : std::as_const(parameter->gradient).as<float>()) EXPECT_EQ(g, 0.0F);
  }
}

double loss_of(const Loss& loss, const Tensor& predictions, const Tensor& targets, double scale) {
  return loss.measure(training_context(), predictions, targets).sum.sum * scale;
}

TEST(EveryLoss, GradientIsTheCentralDifferenceOfTheSumTimesTheScale) {
  Tensor classes(DType::I32, {4});
  for (std::size_t i = 0; i < 4; ++i) classes.as<std::int32_t>()[i] = static_cast<int>(3 - i);
  const Tensor numbers = drawn(DType::F64, {4, 5}, 3);
  const SoftmaxCrossEntropy cross_entropy;
  const MeanSquaredError squared;
  for (const double scale : {1.0, 0.25, 1024.0}) {
    PassContext context = training_context();
    context.loss_scale = scale;
    Tensor y = drawn(DType::F64, {4, 5}, 1);
    for (const Loss* loss :
         {static_cast<const Loss*>(&cross_entropy), static_cast<const Loss*>(&squared)}) {
      const Tensor& targets = loss == &squared ? numbers : classes;
      const LossResult result = loss->measure(context, y, targets);
      expect_central_differences(
          y, result.gradient, [&] { return loss_of(*loss, y, targets, scale); }, loss->describe());
    }
  }
}

}  // namespace
}  // namespace millrace::test
