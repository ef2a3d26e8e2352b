// Operations counted by hand, and a measured rate.
#include <cmath>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/stages/products.hpp"
#include "stages/kernels/sampled.hpp"

namespace millrace {
namespace {

TEST(TrainingOperations, OmitGradientsOfModelInputs) {
  const double first = 2.0 * 784 * 512, second = 2.0 * 512 * 512, last = 2.0 * 512 * 10;
  EXPECT_EQ(training_operations(parse_model("mlp:784-512-512-10"), {.samples = 1}),
            2 * first + 3 * (second + last));
}

TEST(TrainingOperations, GrowWithSamples) {
  const ModelSpec model = parse_model("conv:8x8x1-16-32-10");
  const double one = training_operations(model, {.samples = 1});
  EXPECT_GT(one, 0);
  EXPECT_EQ(training_operations(model, {.samples = 7}), 7 * one);
}

TEST(TrainingOperations, OfAttentionAreThoseBelowTheDiagonal) {
  const double d = 32, positions = 6, words = 11, heads_and_columns = d;
  const double pairs = positions * (positions + 1) / 2;
  const double forward_of_block =
      2 * positions * (d * 3 * d + d * d + 2 * d * 4 * d) + 2 * 2 * pairs * heads_and_columns;
  const double forward_of_head = 2 * positions * d * words;
  EXPECT_EQ(training_operations(parse_model("gpt:layers=2,d=32,heads=4,context=6,vocabulary=11"),
                                {.samples = 5, .positions = 6}),
            3 * 5 * (2 * forward_of_block + forward_of_head));
}

TEST(ProductRate, EveryPrecision_IsMeasured) {
  for (const DType precision : {DType::F32, DType::F16, DType::BF16})
    for (const int threads : {1, 3}) {
      const double rate = product_rate(precision, threads);
      EXPECT_TRUE(std::isfinite(rate) && rate > 0) << name_of(precision) << ' ' << threads;
    }
}

/// A clock that a run moves.
struct RunClock {
  double seconds = 0;
  int runs = 0;

  std::vector<double> sampled(double first, double later, double budget) {
    return millrace::sampled(
        [&] { seconds += runs++ == 0 ? first : later; }, [&] { return seconds; }, budget);
  }
};

TEST(ProductRate, LeavesTheColdProductOut) {
  EXPECT_EQ(RunClock().sampled(100, 1, 5), std::vector<double>(5, 1));
}

TEST(ProductRate, OfSlowProducts_HasThreeSamples) {
  EXPECT_EQ(RunClock().sampled(100, 64, 0.015), std::vector<double>(3, 64));
}

TEST(ProductRate, RefusesNoThreads) {
  EXPECT_THROW((void)product_rate(DType::F32, 0), InvalidArgument);
}

}  // namespace
}  // namespace millrace
