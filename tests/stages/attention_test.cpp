// Attention against its definition, written out for one query and one key at a time.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/stages/layer.hpp"
#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Form {
  std::int64_t heads;
  std::int64_t kv_heads;
  double rotary;
};

constexpr std::int64_t kHead = 4;

std::int64_t columns_of(const Form& form) {
  return (form.heads + 2 * form.kv_heads) * kHead;
}

std::unique_ptr<Layer> attention_of(const Form& form, DType dtype = DType::F64) {
  return built("attention",
               {{"heads", form.heads}, {"kv_heads", form.kv_heads}, {"rotary", form.rotary}},
               {1, 1, columns_of(form)},
               dtype);
}

/// Head `slot` of a row at a position, turned by complex multiplication.
std::vector<double> head_at(
    const Tensor& x, const Form& form, std::int64_t row, std::int64_t slot, double position) {
  std::vector<double> head(kHead);
  for (std::int64_t i = 0; i < kHead; ++i)
    head[static_cast<std::size_t>(i)] =
        x.as<double>()[static_cast<std::size_t>(row * columns_of(form) + slot * kHead + i)];
  if (form.rotary == 0 || slot >= form.heads + form.kv_heads) return head;
  for (std::size_t i = 0; i < kHead / 2; ++i) {
    const double angle = position * std::pow(form.rotary, -2.0 * static_cast<double>(i) / kHead);
    const double a = head[i];
    const double b = head[i + kHead / 2];
    head[i] = a * std::cos(angle) - b * std::sin(angle);
    head[i + kHead / 2] = a * std::sin(angle) + b * std::cos(angle);
  }
  return head;
}

/// Output of one query of one sample.
std::vector<double> attended(
    const Tensor& x, const Form& form, std::int64_t sample, std::int64_t query, std::int64_t head) {
  const std::int64_t positions = x.dims()[1];
  const std::int64_t group = head / (form.heads / form.kv_heads);
  const auto at = [&](std::int64_t slot, std::int64_t position) {
    return head_at(x, form, sample * positions + position, slot, static_cast<double>(position));
  };
  const std::vector<double> q = at(head, query);
  std::vector<double> result(kHead, 0.0);
  double sum = 0;
  for (std::int64_t key = 0; key <= query; ++key) {
    const std::vector<double> k = at(form.heads + group, key);
    const std::vector<double> v = at(form.heads + form.kv_heads + group, key);
    double score = 0;
    for (std::size_t i = 0; i < kHead; ++i) score += q[i] * k[i];
    const double share = std::exp(score / std::sqrt(static_cast<double>(kHead)));
    sum += share;
    for (std::size_t i = 0; i < kHead; ++i) result[i] += share * v[i];
  }
  for (double& number : result) number /= sum;
  return result;
}

const std::vector<Form> kForms = {{1, 1, 0}, {4, 4, 0}, {4, 2, 10000}, {6, 1, 50}};

TEST(Attention, IsTheSoftmaxOverEarlierKeysOfEveryLength) {
  for (const Form& form : kForms)
    for (const std::int64_t positions : {1, 5, 63, 64, 65, 150}) {
      const auto layer = attention_of(form);
      const Tensor x = drawn(DType::F64, {2, positions, columns_of(form)}, 3);
      Stash stash;
      const TensorList y = layer->forward(training_context(), TensorList(x.clone()), stash);
      ASSERT_EQ(y[0].dims(), (Dims{2, positions, form.heads * kHead}));
      std::size_t place = 0;
      for (std::int64_t sample = 0; sample < 2; ++sample)
        for (std::int64_t query = 0; query < positions; ++query)
          for (std::int64_t head = 0; head < form.heads; ++head)
            for (const double number : attended(x, form, sample, query, head))
              ASSERT_NEAR(y[0].as<double>()[place++], number, 1e-12) << layer->describe();
    }
}

TEST(Attention, HasRightGradientsAcrossBlocksOfQueries) {
  const LayerProbe probe(
      {"attention", {{"heads", std::int64_t{2}}, {"kv_heads", std::int64_t{1}}, {"rotary", 100.0}}},
      {{DType::F64, {kSamples, kPositions, 8}}},
      DType::F64);
  expect_right_gradients(probe, {.samples = 1, .positions = 70});
}

TEST(Attention, OfLaterPositionsChangesNoBitOfEarlierOnes) {
  const Form form{4, 2, 10000};
  const auto layer = attention_of(form, DType::F32);
  Tensor x = drawn(DType::F32, {1, 150, columns_of(form)}, 3);
  Stash stash;
  const TensorList before = layer->forward(training_context(), TensorList(x.clone()), stash);
  constexpr std::size_t kFrom = 100;
  const auto numbers = x.as<float>();
  for (std::size_t i = kFrom * static_cast<std::size_t>(columns_of(form)); i < numbers.size(); ++i)
    numbers[i] += 5;
  const TensorList after = layer->forward(training_context(), TensorList(x.clone()), stash);
  const std::size_t same = kFrom * static_cast<std::size_t>(form.heads * kHead);
  for (std::size_t i = 0; i < same; ++i)
    ASSERT_EQ(before[0].as<float>()[i], after[0].as<float>()[i]) << i;
  EXPECT_NE(before[0].as<float>()[same], after[0].as<float>()[same]);
}

TEST(Attention, StandsScoresThatAreLarge) {
  const Form form{1, 1, 0};
  const auto layer = attention_of(form, DType::F32);
  Tensor x = drawn(DType::F32, {1, 20, columns_of(form)}, 3);
  for (float& number : x.as<float>()) number *= 1e4F;
  Stash stash;
  const TensorList y = layer->forward(training_context(), TensorList(x.clone()), stash);
  for (const float number : std::as_const(y[0]).as<float>())
    EXPECT_TRUE(std::abs(number) <= 1e4F) << number;
}

TEST(Attention, SaysWhatDoesNotFit) {
  const TensorType rows{DType::F32, {kSamples, kPositions, 24}};
  const auto whole = [](std::int64_t number) { return number; };
  const struct {
    LayerSettings settings;
    const char* why;
  } faults[] = {
      {{}, "'heads' must be given"},
      {{{"heads", whole(3)}, {"kv_heads", whole(2)}}, "a multiple of the key and value heads"},
      {{{"heads", whole(5)}, {"kv_heads", whole(5)}}, "a multiple of 15 numbers, got 24"},
      {{{"heads", whole(4)}, {"kv_heads", whole(2)}, {"rotary", 100.0}}, "even number of columns"},
      {{{"heads", whole(2)}, {"rotary", -1.0}}, "rotary must be 0 or a base above it"},
  };
  for (const auto& fault : faults)
    EXPECT_THAT(
        [&] {
          (void)build_layer({"attention", fault.settings}, std::vector{rows}, {});
        },
        ThrowsMessage<InvalidArgument>(HasSubstr(fault.why)))
        << fault.why;
}

/// Positions [first, first + count) of [rows, positions, columns].
Tensor cut(const Tensor& whole, std::int64_t first, std::int64_t count) {
  const Dims& dims = whole.dims();
  Tensor part(whole.dtype(), {dims[0], count, dims[2]});
  const std::size_t bytes = part.bytes() / static_cast<std::size_t>(dims[0]);
  const std::size_t row = whole.bytes() / static_cast<std::size_t>(dims[0]);
  const std::size_t position = row / static_cast<std::size_t>(dims[1]);
  for (std::size_t n = 0; n < static_cast<std::size_t>(dims[0]); ++n)
    std::memcpy(static_cast<std::byte*>(part.data()) + n * bytes,
                static_cast<const std::byte*>(whole.data()) + n * row +
                    static_cast<std::size_t>(first) * position,
                bytes);
  return part;
}

void expect_close(const Tensor& a, const Tensor& b, double tolerance) {
  ASSERT_EQ(a.dims(), b.dims());
  for (std::size_t i = 0; i < static_cast<std::size_t>(a.elements()); ++i) {
    const double left = a.dtype() == DType::F64 ? a.as<double>()[i] : a.as<float>()[i];
    const double right = b.dtype() == DType::F64 ? b.as<double>()[i] : b.as<float>()[i];
    ASSERT_NEAR(left, right, tolerance) << i;
  }
}

struct Sliced {
  std::vector<Tensor> outputs, gradients;  // by slice
};

/// Slices forward, and backward from the last; bytes counted are those predicted.
Sliced run_slices(Layer& layer,
                  const Tensor& x,
                  const Tensor& dy,
                  const std::vector<std::int64_t>& lengths) {
  const int slices = static_cast<int>(lengths.size());
  layer.cut_into(slices);
  std::vector<Stash> stashes(lengths.size());
  for (Stash& stash : stashes) stash.hold_in(layer.precision());
  Stash::join(stashes);
  StashMeter meter;
  PassContext context = training_context();
  context.slices = slices;
  context.meter = &meter;
  Sliced sliced;
  std::vector<std::int64_t> firsts;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    firsts.push_back(context.first_position);
    context.slice = Slice{static_cast<int>(s)};
    Tensor part = cut(x, firsts[s], lengths[s]);
    const std::size_t before = meter.bytes;
    const TensorType type{part.dtype(), part.dims()};
    sliced.outputs.push_back(
        layer.forward(context, TensorList(std::move(part)), stashes[s])[0].clone());
    EXPECT_EQ(meter.bytes - before, layer.bytes(std::vector{type}).after_forward);
    context.first_position += lengths[s];
  }
  sliced.gradients.resize(lengths.size());
  for (std::size_t s = lengths.size(); s-- > 0;) {
    context.slice = Slice{static_cast<int>(s)};
    context.first_position = firsts[s];
    sliced.gradients[s] =
        layer
            .backward_input(
                context, TensorList(cut(dy, firsts[s], lengths[s])), stashes[s], true)[0]
            .clone();
  }
  EXPECT_EQ(meter.bytes, 0U);
  return sliced;
}

TEST(Attention, Slices_EqualTheWhole) {
  constexpr std::int64_t kLength = 150;
  for (const Form& form : kForms) {
    const auto layer = attention_of(form);
    const Tensor x = drawn(DType::F64, {2, kLength, columns_of(form)}, 3);
    const Tensor dy = drawn(DType::F64, {2, kLength, form.heads * kHead}, 4);
    const Sliced whole = run_slices(*layer, x, dy, {kLength});
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{75, 75}, {1, 70, 79}, {64, 1, 64, 21}}) {
      const Sliced sliced = run_slices(*layer, x, dy, lengths);
      std::int64_t first = 0;
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        expect_close(sliced.outputs[s], cut(whole.outputs[0], first, lengths[s]), 1e-12);
        expect_close(sliced.gradients[s], cut(whole.gradients[0], first, lengths[s]), 1e-12);
        first += lengths[s];
      }
    }
  }
}

TEST(Attention, OfSlicesKeepsRowsInItsPrecision) {
  const auto layer = attention_of({4, 2, 100}, DType::F32);
  layer->hold_in(DType::BF16);
  Tensor x = drawn(DType::F32, {2, 20, columns_of({4, 2, 100})}, 3);
  round_to(DType::BF16, x.as<float>());
  const Tensor dy = drawn(DType::F32, {2, 20, 4 * kHead}, 4);
  const Sliced whole = run_slices(*layer, x, dy, {20});
  const Sliced sliced = run_slices(*layer, x, dy, {7, 13});
  expect_close(sliced.gradients[1], cut(whole.gradients[0], 7, 13), 1e-5);
}

}  // namespace
}  // namespace millrace::test
