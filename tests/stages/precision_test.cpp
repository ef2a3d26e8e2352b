// Rounding to f16 and bf16 against the list of all such numbers, and what a stage of such numbers
// lets out and keeps.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/stages/layer.hpp"
#include "millrace/stages/models.hpp"
#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

/// What 16 bits mean, by the definition of the formats: sign, exponent, fraction.
double meaning_of(std::uint16_t bits, DType dtype) {
  const int fraction_bits = dtype == DType::F16 ? 10 : 7;
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const double fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits >> 15U != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(1 + std::ldexp(fraction, -fraction_bits), exponent - bias);
}

Tensor every_number(DType dtype) {
  Tensor all(dtype, {65536});
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto word = static_cast<std::uint16_t>(bits);
    std::memcpy(static_cast<char*>(all.data()) + 2 * static_cast<std::size_t>(bits), &word, 2);
  }
  return all;
}

/// Rounds by search: the nearest of all finite numbers of 0 and above, of two the even one; what
/// lies at least half a step beyond the largest is infinite.
class SearchedRounding {
 public:
  explicit SearchedRounding(DType dtype) {
    for (std::uint32_t bits = 0; bits < 32768; ++bits) {
      const double number = meaning_of(static_cast<std::uint16_t>(bits), dtype);
      if (std::isfinite(number)) numbers_.push_back(number);
    }
  }

  [[nodiscard]] double operator()(double number) const {
    const double size = std::abs(number);
    const double largest = numbers_.back();
    const double next = 2 * largest - numbers_[numbers_.size() - 2];
    double found = 0;
    if (size >= largest) {
      found = size >= (largest + next) / 2 ? std::numeric_limits<double>::infinity() : largest;
    } else {
      const auto above = std::upper_bound(numbers_.begin(), numbers_.end(), size);
      const auto below = above - 1;
      const double middle = (*below + *above) / 2;
      const bool even_below = (below - numbers_.begin()) % 2 == 0;
      found = size < middle || (size == middle && even_below) ? *below : *above;
    }
    return std::copysign(found, number);
  }

 private:
  std::vector<double> numbers_;
};

std::vector<float> telling_numbers(DType dtype) {
  std::vector<float> numbers;
  for (std::uint32_t bits = 0; bits < 32767; ++bits) {
    const double low = meaning_of(static_cast<std::uint16_t>(bits), dtype);
    const double high = meaning_of(static_cast<std::uint16_t>(bits + 1), dtype);
    if (!std::isfinite(high)) continue;
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float number : {middle,
                               std::nextafter(middle, 0.0F),
                               std::nextafter(middle, std::numeric_limits<float>::infinity())})
      numbers.push_back(bits % 2 == 0 ? number : -number);
  }
  for (const float number :
       {65519.0F, 65519.996F, 65520.0F, 1e38F, std::numeric_limits<float>::max(), 1e-45F, -0.0F})
    numbers.push_back(number);
  return numbers;
}

class Precision : public testing::TestWithParam<DType> {};

TEST_P(Precision, WidensEveryNumberToWhatItMeansAndBack) {
  const PassContext context;
  const Tensor all = every_number(GetParam());
  const Tensor wide = widened(context, all);
  const Tensor again = narrowed(context, wide, GetParam());
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double meaning = meaning_of(static_cast<std::uint16_t>(bits), GetParam());
    const float value = wide.as<float>()[bits];
    if (std::isnan(meaning)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), meaning) << bits;
    std::uint16_t back = 0;
    std::memcpy(&back, static_cast<const char*>(again.data()) + 2 * std::size_t{bits}, 2);
    EXPECT_EQ(back, bits);
  }
}

TEST_P(Precision, RoundsToNearestEven) {
  const SearchedRounding expected(GetParam());
  std::vector<float> numbers = telling_numbers(GetParam());
  const std::vector<float> before = numbers;
  round_to(GetParam(), numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    EXPECT_EQ(static_cast<double>(numbers[i]), expected(before[i])) << before[i];
  float nothing = std::numeric_limits<float>::quiet_NaN();
  round_to(GetParam(), {&nothing, 1});
  EXPECT_TRUE(std::isnan(nothing));
}

TEST_P(Precision, GivesTheSameBitsWhereverTheNumbersLie) {
  const std::vector<float> numbers = telling_numbers(GetParam());
  for (const std::size_t first : {1U, 3U, 7U}) {
    std::vector<float> together(numbers.begin() + static_cast<std::ptrdiff_t>(first),
                                numbers.begin() + 2500);
    std::vector<float> alone = together;
    round_to(GetParam(), together);
    for (float& number : alone) round_to(GetParam(), {&number, 1});
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), 4 * alone.size()), 0);
  }
}

TEST_P(Precision, StagesLetOutNarrowTensorsAndTakeThem) {
  ModelSpec model = parse_model("mlp:6-5-4");
  model.precision = GetParam();
  const std::vector<int> cut{0, 1, 2};
  auto stages = build_stages(model, cut, 1);
  PassContext context = training_context();
  TensorList targets(Tensor(DType::I32, {3}));
  targets[0].fill_zero();
  context.targets = &targets;
  TensorList sent = stages[0]->forward(context, TensorList(drawn(DType::F32, {3, 6}, 1)));
  EXPECT_EQ(sent[0].dtype(), GetParam());
  EXPECT_TRUE(stages[1]->forward(context, std::move(sent)).empty());
  TensorList back = stages[1]->backward_input(context, {});
  EXPECT_EQ(back[0].dtype(), GetParam());
  EXPECT_TRUE(stages[0]->backward_input(context, std::move(back)).empty());
  for (const auto& stage : stages)
    for (const Parameter* parameter : stage->parameters()) {
      EXPECT_EQ(parameter->precision, GetParam()) << parameter->name;
      EXPECT_EQ(parameter->gradient.dtype(), DType::F32);
    }
  PassContext evaluation = context;
  evaluation.training = false;
  const TensorList between =
      stages[0]->forward(evaluation, TensorList(drawn(DType::F32, {3, 6}, 1)));
  EXPECT_EQ(between[0].dtype(), GetParam());
  const TensorList predicted = stages[1]->forward(evaluation, TensorList(between[0].clone()));
  EXPECT_EQ(predicted[0].dtype(), DType::F32);
}

TEST_P(Precision, LowPrecision_HalvesTheStash) {
  const auto kept = [](const char* text, DType precision) {
    ModelSpec model = parse_model(text);
    model.precision = precision;
    const std::vector<int> cut{0, 1, model.layer_count()};
    return build_stage(model, cut, 0, 1)->stash_bytes({.samples = 8}, false).after_forward;
  };
  EXPECT_EQ(2 * kept("mlp:64-32-10,tanh", GetParam()), kept("mlp:64-32-10,tanh", DType::F32));
  // relu's slopes are bytes in any precision
  EXPECT_EQ(kept("mlp:64-32-10", GetParam()), std::size_t{8 * (2 * 64 + 32)});
  ModelSpec norm = parse_model("mlp:8-8-8,norm");
  norm.precision = GetParam();
  const std::vector<int> cut{0, 1, 2, 3};
  const auto wide = build_stage(norm, cut, 1, 1)->stash_bytes({.samples = 8}, false);
  EXPECT_EQ(wide.after_forward, std::size_t{8 * 9 * 4});
  EXPECT_EQ(build_stage(norm, cut, 1, 1)->parameters()[0]->precision, DType::F32);
}

TEST_P(Precision, OfTheGradientIsNearThatOfF32) {
  const auto gradients = [](DType precision) {
    ModelSpec model = parse_model("mlp:16-24-24-6,gelu,norm,residual");
    model.precision = precision;
    const auto stage = build_stage(model, std::vector<int>{0, model.layer_count()}, 0, 5);
    PassContext context = training_context();
    TensorList targets(Tensor(DType::I32, {12}));
    targets[0].fill_zero();
    context.targets = &targets;
    (void)stage->forward(context, TensorList(drawn(DType::F32, {12, 16}, 1)));
    (void)stage->backward(context, {});
    std::map<std::string, std::vector<float>> all;
    for (const Parameter* parameter : stage->parameters()) {
      const auto values = parameter->gradient.as<float>();
      all[parameter->name] = {values.begin(), values.end()};
    }
    return all;
  };
  const auto exact = gradients(DType::F32);
  const auto rounded = gradients(GetParam());
  const double step = GetParam() == DType::F16 ? 1.0 / 2048 : 1.0 / 256;
  for (const auto& [name, values] : exact) {
    double largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(double{value}));
    EXPECT_NE(values, rounded.at(name)) << name;
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(rounded.at(name)[i], values[i], 8 * step * largest) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Narrow,
                         Precision,
                         testing::Values(DType::BF16, DType::F16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

TEST(PrecisionName, IsOneOfThree) {
  EXPECT_EQ(precision_of("bf16"), DType::BF16);
  EXPECT_THAT([] { (void)precision_of("fp16"); },
              testing::ThrowsMessage<InvalidArgument>(
                  "unknown precision 'fp16'; known are f32, bf16, f16"));
  ModelSpec model = parse_model("mlp:4-4");
  model.precision = DType::F64;
  EXPECT_THROW((void)infer_types(model), InvalidArgument);
  model.precision = DType::BF16;
  model.dtype = DType::F64;
  model.inputs[0].dtype = DType::F64;
  EXPECT_THROW((void)infer_types(model), InvalidArgument);
}

}  // namespace
}  // namespace millrace::test
