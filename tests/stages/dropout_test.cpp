// Dropout's mask is a function of the sample, not of the micro-batch it came in.
#include <algorithm>

#include <gtest/gtest.h>

#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

Tensor ones(std::int64_t rows, std::int64_t columns) {
  Tensor tensor(DType::F32, {rows, columns});
  std::ranges::fill(tensor.as<float>(), 1.0F);
  return tensor;
}

Tensor dropped(std::int64_t first_sample,
               std::int64_t rows,
               std::uint64_t step,
               std::uint32_t layer) {
  const auto dropout = built("dropout", {{"rate", 0.25}}, {rows, 33}, DType::F32, layer);
  PassContext context;
  context.first_sample = first_sample;
  context.step = step;
  Stash stash;
  return std::move(dropout->forward(context, TensorList(ones(rows, 33)), stash)[0]);
}

TEST(Dropout, Mask_IsIndependentOfMicroBatches) {
  Tensor whole = dropped(0, 12, 4, 1);
  for (const std::int64_t first : {0, 5, 11})
    EXPECT_TRUE(same_bits(whole.borrow_rows(first, 1), dropped(first, 1, 4, 1)));
}

TEST(Dropout, MaskChangesWithStepSampleAndLayer) {
  const Tensor reference = dropped(0, 1, 0, 0);
  EXPECT_FALSE(same_bits(reference, dropped(1, 1, 0, 0)));
  EXPECT_FALSE(same_bits(reference, dropped(0, 1, 1, 0)));
  EXPECT_FALSE(same_bits(reference, dropped(0, 1, 0, 1)));
}

TEST(Dropout, DropsItsShareAndKeepsTheMean) {
  const Tensor output = dropped(0, 1000, 0, 0);
  const auto values = output.as<float>();
  const auto zeros = std::ranges::count(values, 0.0F);
  EXPECT_NEAR(static_cast<double>(zeros) / static_cast<double>(values.size()), 0.25, 0.01);
  for (const float value : values) EXPECT_TRUE(value == 0.0F || value == 1.0F / 0.75F);
}

TEST(Dropout, RefusesRatesOutsideZeroToBelowOne) {
  for (const double rate : {-0.1, 1.0, 2.0})
    EXPECT_THROW((void)built("dropout", {{"rate", rate}}, {1, 1}), InvalidArgument);
}

}  // namespace
}  // namespace millrace::test
