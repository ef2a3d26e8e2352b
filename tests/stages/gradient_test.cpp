// Every layer's and loss's derivatives against central differences in double, and what the layer
// contract promises of every layer: stash bytes as declared, an untouched input, an empty end.
#include <gtest/gtest.h>

#include "millrace/stages/loss.hpp"
#include "stages/every_layer.hpp"

namespace millrace::test {
namespace {

constexpr UnitSize kSize{.samples = 3, .positions = 4};

TEST(EveryLayer, BackwardPasses_AreCentralDifferences) {
  for (const LayerProbe& probe : every_layer(DType::F64))
    for (const UnitSize size : {UnitSize{1, 3}, UnitSize{4, 2}})
      expect_right_gradients(probe, size);
}

TEST(EveryLayer, GivesWhatItInfers) {
  for (const LayerProbe& probe : every_layer(DType::F32)) {
    Stash stash;
    const TensorList outputs =
        probe.layer().forward(training_context(), copies_of(probe.inputs(kSize)), stash);
    const auto types = probe.layer().infer(probe.types());
    ASSERT_EQ(outputs.size(), types.size());
    for (std::size_t i = 0; i < types.size(); ++i) {
      EXPECT_EQ(outputs[i].dtype(), types[i].dtype) << probe.name();
      EXPECT_EQ(outputs[i].dims(), sized(types[i], kSize).dims) << probe.name();
    }
  }
}

TEST(EveryLayer, SinglePrecisionFollowsDouble) {
  const auto singles = every_layer(DType::F32);
  const auto doubles = every_layer(DType::F64);
  for (std::size_t k = 0; k < singles.size(); ++k) {
    Stash single_stash;
    Stash double_stash;
    const PassContext context = training_context();
    const TensorList single =
        singles[k].layer().forward(context, copies_of(singles[k].inputs(kSize)), single_stash);
    const TensorList exact =
        doubles[k].layer().forward(context, copies_of(doubles[k].inputs(kSize)), double_stash);
    for (std::size_t i = 0; i < exact[0].as<double>().size(); ++i)
      EXPECT_NEAR(single[0].as<float>()[i], exact[0].as<double>()[i], 2e-6) << singles[k].name();
  }
}

class EveryLayerIn : public testing::TestWithParam<DType> {};

TEST_P(EveryLayerIn, StashesWhatItDeclaresAndEndsEmpty) {
  for (const LayerProbe& probe : every_layer(DType::F32)) {
    Layer& layer = probe.layer();
    layer.hold_in(GetParam());
    StashMeter meter;
    PassContext context = training_context();
    context.meter = &meter;
    Stash stash;
    stash.hold_in(GetParam());
    const LayerBytes bytes = layer.bytes(probe.types(kSize));
    std::vector<Tensor> inputs = probe.inputs(kSize);
    const std::vector<Tensor> before = probe.inputs(kSize);
    TensorList given;
    for (Tensor& input : inputs)
      given.push_back(Tensor(input.dtype(), input.dims(), input.data(), nullptr, nullptr));

    const TensorList outputs = layer.forward(context, std::move(given), stash);
    EXPECT_EQ(meter.bytes, bytes.after_forward) << probe.name();
    std::size_t shared = 0;
    for (std::size_t i = 0; i < stash.shared_size(); ++i) shared += stash.shared(i).bytes();
    EXPECT_EQ(shared, bytes.shared) << probe.name();
    (void)layer.backward_input(context, copies_of(probe.output_gradients(kSize)), stash, true);
    EXPECT_EQ(meter.bytes, bytes.after_input) << probe.name();
    EXPECT_EQ(meter.peak, std::max(bytes.after_forward, bytes.after_input)) << probe.name();
    layer.backward_weight(context, stash);

    EXPECT_EQ(meter.bytes, 0U) << probe.name();
    EXPECT_EQ(stash.size() * layer.parameters().size(), 0U) << probe.name();
    for (std::size_t i = 0; i < inputs.size(); ++i)
      EXPECT_TRUE(same_bits(inputs[i], before[i])) << probe.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions,
                         EveryLayerIn,
                         testing::Values(DType::F32, DType::BF16, DType::F16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

TEST(EveryLayer, KeepsNothingInEvaluation) {
  for (const LayerProbe& probe : every_layer(DType::F32)) {
    PassContext context = training_context();
    context.training = false;
    Stash stash;
    (void)probe.layer().forward(context, copies_of(probe.inputs(kSize)), stash);
    EXPECT_EQ(stash.size() + stash.shared_size(), 0U) << probe.name();
  }
}

TEST(EveryLayer, GivesNoInputGradientWhereNobodyWantsOne) {
  for (const LayerProbe& probe : every_layer(DType::F32)) {
    Stash stash;
    const PassContext context = training_context();
    (void)probe.layer().forward(context, copies_of(probe.inputs(kSize)), stash);
    const TensorList gradients = probe.layer().backward_input(
        context, copies_of(probe.output_gradients(kSize)), stash, false);
    EXPECT_TRUE(gradients.empty()) << probe.name();
    probe.layer().backward_weight(context, stash);
  }
}

TEST(EveryLayer, WrongInputs_AreRejected) {
  for (const LayerProbe& probe : every_layer(DType::F32)) {
    Stash stash;
    const PassContext context = training_context();
    const auto with_first = [&](Tensor first) {
      TensorList inputs = copies_of(probe.inputs(kSize));
      inputs[0] = std::move(first);
      return inputs;
    };
    std::vector<Tensor> inputs = probe.inputs(kSize);
    const Dims dims = inputs[0].dims();
    EXPECT_THROW(
        (void)probe.layer().forward(context, with_first(drawn(DType::F64, dims, 1)), stash),
        InvalidArgument)
        << probe.name();
    EXPECT_THROW((void)probe.layer().forward(context, with_first(Tensor()), stash), InvalidArgument)
        << probe.name();
    EXPECT_THROW((void)probe.layer().forward(context, {}, stash), InvalidArgument) << probe.name();
    Tensor longer = drawn(inputs[0].dtype(), Dims{dims.elements() + 1}, 1);
    auto* elsewhere = static_cast<std::byte*>(longer.data()) + 4;
    EXPECT_THROW((void)probe.layer().forward(
                     context,
                     with_first(Tensor(inputs[0].dtype(), dims, elsewhere, nullptr, nullptr)),
                     stash),
                 InvalidArgument)
        << probe.name();
    EXPECT_EQ(stash.size() + stash.shared_size(), 0U) << probe.name();
  }
}

TEST(EveryLayer, RefusesTypesThatItDoesNotTake) {
  for (const LayerProbe& probe : every_layer(DType::F32)) {
    auto types = probe.types();
    types[0].dtype = DType::F16;
    EXPECT_THROW((void)probe.layer().infer(types), InvalidArgument) << probe.name();
    EXPECT_THROW((void)probe.layer().infer({}), InvalidArgument) << probe.name();
  }
}

TEST(EveryLayer, TakesAMicroBatchWithoutRows) {
  constexpr UnitSize kNothing{.samples = 0, .positions = 4};
  for (const LayerProbe& probe : every_layer(DType::F32)) {
    Layer& layer = probe.layer();
    Stash stash;
    const PassContext context = training_context();
    TensorList outputs = layer.forward(context, copies_of(probe.inputs(kNothing)), stash);
    EXPECT_EQ(outputs[0].rows(), 0) << probe.name();
    const TensorList gradients = layer.backward_input(context, std::move(outputs), stash, true);
    EXPECT_EQ(gradients[0].rows(), 0) << probe.name();
    layer.backward_weight(context, stash);
    for (const Parameter* parameter : layer.parameters())
      for (const float g : std::as_const(parameter->gradient).as<float>()) EXPECT_EQ(g, 0.0F);
  }
}

double loss_of(const Loss& loss,
               const Tensor& predictions,
               const TensorList& targets,
               double scale) {
  return loss.measure(training_context(), predictions, targets).sum.sum * scale;
}

TEST(EveryLoss, Gradient_IsTheCentralDifference) {
  Tensor labels(DType::I32, {4});
  for (std::size_t i = 0; i < 4; ++i) labels.as<std::int32_t>()[i] = static_cast<int>(3 - i);
  TensorList classes(std::move(labels));
  Tensor weights = drawn(DType::F32, {4}, 9);
  for (float& weight : weights.as<float>()) weight = std::abs(weight);
  classes.push_back(std::move(weights));
  const TensorList numbers(drawn(DType::F64, {4, 5}, 3));
  const SoftmaxCrossEntropy cross_entropy;
  const MeanSquaredError squared;
  for (const double scale : {1.0, 0.25, 1024.0}) {
    PassContext context = training_context();
    context.loss_scale = scale;
    Tensor y = drawn(DType::F64, {4, 5}, 1);
    for (const Loss* loss :
         {static_cast<const Loss*>(&cross_entropy), static_cast<const Loss*>(&squared)}) {
      const TensorList& targets = loss == &squared ? numbers : classes;
      const LossResult result = loss->measure(context, y, targets);
      expect_central_differences(
          y, result.gradient, [&] { return loss_of(*loss, y, targets, scale); }, loss->describe());
    }
  }
}

}  // namespace
}  // namespace millrace::test
