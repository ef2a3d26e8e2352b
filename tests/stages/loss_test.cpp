// Values of the losses that can be checked on paper, their weights, and what they refuse.
#include "millrace/stages/loss.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

template <class T>
Tensor holding(const Dims& dims, std::initializer_list<T> values) {
  Tensor tensor(dtype_of<T>(), dims);
  std::copy(values.begin(), values.end(), tensor.as<T>().begin());
  return tensor;
}

TensorList only(Tensor targets) {
  return TensorList(std::move(targets));
}

TensorList weighted(Tensor targets, Tensor weights) {
  TensorList list(std::move(targets));
  list.push_back(std::move(weights));
  return list;
}

TEST(SoftmaxCrossEntropy, EqualLogits_CostLogOfClasses) {
  const Tensor logits = holding<double>({2, 4}, {5, 5, 5, 5, -3, -3, -3, -3});
  const LossResult result = SoftmaxCrossEntropy().measure(
      training_context(), logits, only(holding<std::int32_t>({2}, {0, 3})));
  EXPECT_NEAR(result.sum.sum, 2 * std::log(4.0), 1e-14);
  EXPECT_EQ(result.sum.weight, 2);
  EXPECT_EQ(result.sum.correct, 1);  // of equal logits the first counts as the prediction
}

TEST(SoftmaxCrossEntropy, HugeLogits_KeepTheGradient) {
  const Tensor logits = holding<float>({2, 2}, {3e38F, -3e38F, 1e4F, 0.0F});
  const LossResult result = SoftmaxCrossEntropy().measure(
      training_context(), logits, only(holding<std::int32_t>({2}, {0, 1})));
  EXPECT_NEAR(result.sum.sum, 1e4, 1e-3);
  for (const float g : std::as_const(result.gradient).as<float>()) EXPECT_TRUE(std::isfinite(g));
  EXPECT_NEAR(result.gradient.as<float>()[2], 1, 1e-6);
  EXPECT_NEAR(result.gradient.as<float>()[3], -1, 1e-6);
}

TEST(SoftmaxCrossEntropy, GradientOfEachRowSumsToZero) {
  const LossResult result = SoftmaxCrossEntropy().measure(
      training_context(), drawn(DType::F32, {1, 9}, 1), only(holding<std::int32_t>({1}, {4})));
  double sum = 0;
  for (const float g : std::as_const(result.gradient).as<float>()) sum += static_cast<double>(g);
  EXPECT_NEAR(sum, 0, 1e-6);
}

TEST(SoftmaxCrossEntropy, TargetsThatAreNoClassesAreNamed) {
  const auto measure = [](Tensor targets) {
    return [held = std::make_shared<TensorList>(only(std::move(targets)))] {
      (void)SoftmaxCrossEntropy().measure(training_context(), drawn(DType::F32, {2, 3}, 1), *held);
    };
  };
  EXPECT_THAT(measure(holding<std::int32_t>({2}, {0, 3})),
              ThrowsMessage<InvalidArgument>(
                  "the target of row 1 is class 3, but the model has classes 0 to 2"));
  EXPECT_THAT(measure(holding<std::int32_t>({2}, {-1, 0})),
              ThrowsMessage<InvalidArgument>(HasSubstr("class -1")));
  EXPECT_THAT(measure(holding<std::int32_t>({3}, {0, 0, 0})),
              ThrowsMessage<InvalidArgument>(HasSubstr("3 targets for 2 rows")));
  EXPECT_THAT(measure(holding<float>({2}, {0, 0})),
              ThrowsMessage<InvalidArgument>(HasSubstr("got f32")));
}

TEST(MeanSquaredError, SumAndWeight_GiveTheMean) {
  const Tensor predictions = holding<double>({2, 2}, {1, 2, 3, 4});
  const TensorList targets = only(holding<double>({2, 2}, {0, 2, 5, 4}));
  PassContext context = training_context();
  context.loss_scale = 0.5;
  const LossResult result = MeanSquaredError().measure(context, predictions, targets);
  EXPECT_EQ(result.sum.sum, 5);  // 1 + 0 + 4 + 0
  EXPECT_EQ(result.sum.weight, 4);
  EXPECT_THAT(result.gradient.as<double>(), testing::ElementsAre(1, 0, -2, 0));
}

TEST(MeanSquaredError, RefusesAnotherShapeOrDtype) {
  const MeanSquaredError loss;
  const Tensor y = drawn(DType::F32, {2, 3}, 1);
  EXPECT_THROW((void)loss.measure(training_context(), y, only(drawn(DType::F32, {2, 2}, 1))),
               InvalidArgument);
  EXPECT_THROW((void)loss.measure(training_context(), y, only(drawn(DType::F64, {2, 3}, 1))),
               InvalidArgument);
  EXPECT_THROW((void)loss.weight(only(holding<std::int32_t>({1}, {1}))), InvalidArgument);
}

TEST(EveryLoss, WeightIsKnownBeforeTheForward) {
  const TensorList classes = only(holding<std::int32_t>({3}, {0, 1, 0}));
  const TensorList numbers = only(drawn(DType::F32, {3, 2}, 2));
  const Tensor y = drawn(DType::F32, {3, 2}, 1);
  const SoftmaxCrossEntropy cross_entropy;
  const MeanSquaredError squared;
  EXPECT_EQ(cross_entropy.weight(classes),
            cross_entropy.measure(training_context(), y, classes).sum.weight);
  EXPECT_EQ(squared.weight(numbers), squared.measure(training_context(), y, numbers).sum.weight);
}

TEST(EveryLoss, WeightN_EqualsNTargets) {
  const Tensor y = holding<double>({3, 2}, {0.5, -1, 2, 0.25, 9, 9});
  const Tensor twice = holding<double>({3, 2}, {0.5, -1, 0.5, -1, 2, 0.25});
  const SoftmaxCrossEntropy loss;
  const LossResult weighed = loss.measure(
      training_context(),
      y,
      weighted(holding<std::int32_t>({3}, {1, 0, -100}), holding<float>({3}, {2, 1, 0})));
  const LossResult repeated =
      loss.measure(training_context(), twice, only(holding<std::int32_t>({3}, {1, 1, 0})));

  EXPECT_NEAR(weighed.sum.sum, repeated.sum.sum, 1e-14);
  EXPECT_EQ(weighed.sum.weight, 3);
  EXPECT_EQ(weighed.sum.evaluated, 2);
  EXPECT_EQ(weighed.gradient.as<double>()[4], 0);
  EXPECT_NEAR(weighed.gradient.as<double>()[0], 2 * repeated.gradient.as<double>()[0], 1e-15);
  EXPECT_EQ(
      loss.weight(weighted(holding<std::int32_t>({2}, {1, 0}), holding<float>({2}, {2, 0.5F}))),
      2.5);

  const LossResult squared = MeanSquaredError().measure(
      training_context(),
      holding<float>({1, 3}, {1, 2, 3}),
      weighted(holding<float>({1, 3}, {0, 0, 0}), holding<float>({1, 3}, {0, 1, 0.5F})));
  EXPECT_EQ(squared.sum.sum, 4 + 4.5);
  EXPECT_EQ(squared.sum.weight, 1.5);
  EXPECT_THAT(squared.gradient.as<float>(), testing::ElementsAre(0, 4, 3));
}

TEST(EveryLoss, RefusesWeightsThatDoNotFit) {
  const Tensor y = drawn(DType::F32, {2, 3}, 1);
  const auto measure = [&](Tensor weights) {
    return [&,
            held = std::make_shared<TensorList>(
                weighted(holding<std::int32_t>({2}, {0, 1}), std::move(weights)))] {
      (void)SoftmaxCrossEntropy().measure(training_context(), y, *held);
    };
  };
  EXPECT_THAT(measure(holding<float>({3}, {1, 1, 1})),
              ThrowsMessage<InvalidArgument>(HasSubstr("weight for each of 2 targets, got f32 3")));
  EXPECT_THAT(measure(holding<double>({2}, {1, 1})),
              ThrowsMessage<InvalidArgument>(HasSubstr("got f64")));
  EXPECT_THAT(
      measure(holding<float>({2}, {1, -1})),
      ThrowsMessage<InvalidArgument>("the weight of target 1 must be at least 0, got -1.000000"));
}

TEST(EveryLoss, GivesNoGradientInEvaluation) {
  PassContext context;
  context.training = false;
  const Tensor y = drawn(DType::F32, {1, 2}, 1);
  EXPECT_FALSE(
      SoftmaxCrossEntropy().measure(context, y, only(holding<std::int32_t>({1}, {1}))).gradient);
  EXPECT_FALSE(MeanSquaredError().measure(context, y, only(drawn(DType::F32, {1, 2}, 2))).gradient);
}

}  // namespace
}  // namespace millrace::test
