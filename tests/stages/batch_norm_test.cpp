// Running statistics of batch norm against plain loops over the whole mini-batch, or over one
// micro-batch after the other.
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/stages/models.hpp"
#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

constexpr std::int64_t kColumns = 5;

/// A new one with its first values.
std::unique_ptr<Layer> norm_of(const std::string& statistics, DType dtype = DType::F64) {
  return built(
      "batch_norm", {{"momentum", 0.3}, {"statistics", statistics}}, {1, kColumns}, dtype, 2);
}

/// Number 37 * row + column of a stream, so that a split has the same data; column j lies about 10
/// j.
Tensor rows_of(DType dtype, std::int64_t first, std::int64_t count) {
  Tensor rows(dtype, {count, kColumns});
  const RandomKey key{.seed = 5, .purpose = Purpose::Test};
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < kColumns; ++j) {
      const double value = random_uniform(key, static_cast<std::uint32_t>(37 * (first + i) + j)) +
                           10.0 * static_cast<double>(j);
      const auto at = static_cast<std::size_t>(i * kColumns + j);
      if (dtype == DType::F64) {
        rows.as<double>()[at] = value;
      } else {
        rows.as<float>()[at] = static_cast<float>(value);
      }
    }
  return rows;
}

void run(Layer& layer, Tensor rows) {
  Stash stash;
  Tensor gradient = rows.clone();
  (void)layer.forward(training_context(), TensorList(std::move(rows)), stash);
  (void)layer.backward_input(training_context(), TensorList(std::move(gradient)), stash, true);
  layer.backward_weight(training_context(), stash);
}

/// One step over micro-batches of these sizes.
void step(Layer& layer, const std::vector<std::int64_t>& sizes, std::int64_t first, DType dtype) {
  for (Parameter* parameter : layer.parameters()) parameter->gradient.fill_zero();
  for (const std::int64_t size : sizes) {
    run(layer, rows_of(dtype, first, size));
    first += size;
  }
  layer.update_statistics();
}

struct Moments {
  double mean = 0;
  double variance = 0;  // divided by rows - 1
};

Moments moments(std::int64_t first, std::int64_t rows, std::int64_t column) {
  const Tensor numbers = rows_of(DType::F64, first, rows);
  Moments result;
  const auto at = [&](std::int64_t i) {
    return numbers.as<double>()[static_cast<std::size_t>(i * kColumns + column)];
  };
  for (std::int64_t i = 0; i < rows; ++i) result.mean += at(i) / static_cast<double>(rows);
  for (std::int64_t i = 0; i < rows; ++i)
    result.variance += (at(i) - result.mean) * (at(i) - result.mean);
  if (rows > 1) result.variance /= static_cast<double>(rows - 1);
  return result;
}

double value_of(Layer& layer, std::size_t parameter, std::int64_t column = 0) {
  const Tensor& value = layer.parameters()[parameter]->value;
  const auto at = static_cast<std::size_t>(column);
  return value.dtype() == DType::F64 ? value.as<double>()[at]
                                     : static_cast<double>(value.as<float>()[at]);
}

constexpr std::size_t kMean = 2;
constexpr std::size_t kVariance = 3;
constexpr std::size_t kBatches = 4;

TEST(BatchNormalisation, DeferredStatistics_DoNotDependOnSplit) {
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{12}, {6, 6}, {5, 0, 4, 1, 2}, std::vector<std::int64_t>(12, 1)})
    for (const DType dtype : {DType::F64, DType::F32}) {
      const double near = dtype == DType::F64 ? 1e-12 : 3e-5;
      const auto owner = norm_of("deferred", dtype);
      Layer& layer = *owner;
      std::vector<double> mean(kColumns, 0.0);
      std::vector<double> variance(kColumns, 1.0);
      for (std::int64_t first = 0; first < 48; first += 12) {
        step(layer, sizes, first, dtype);
        for (std::int64_t j = 0; j < kColumns; ++j) {
          const Moments seen = moments(first, 12, j);
          double& m = mean[static_cast<std::size_t>(j)];
          double& v = variance[static_cast<std::size_t>(j)];
          m = 0.7 * m + 0.3 * seen.mean;
          v = 0.7 * v + 0.3 * seen.variance;
          EXPECT_NEAR(value_of(layer, kMean, j), m, near) << j;
          EXPECT_NEAR(value_of(layer, kVariance, j), v, 10 * near) << j;
        }
      }
      EXPECT_EQ(value_of(layer, kBatches), 4);
    }
}

TEST(BatchNormalisation, ImmediateStatistics_FollowMicroBatches) {
  const std::vector<std::int64_t> sizes = {5, 0, 4, 1, 2};
  const auto owner = norm_of("immediate");
  Layer& layer = *owner;
  std::vector<double> mean(kColumns, 0.0);
  std::vector<double> variance(kColumns, 1.0);
  for (std::int64_t first = 0; first < 48; first += 12) {
    step(layer, sizes, first, DType::F64);
    std::int64_t row = first;
    for (const std::int64_t size : sizes) {
      for (std::int64_t j = 0; size > 0 && j < kColumns; ++j) {
        const Moments seen = moments(row, size, j);
        double& m = mean[static_cast<std::size_t>(j)];
        double& v = variance[static_cast<std::size_t>(j)];
        m = 0.7 * m + 0.3 * seen.mean;
        v = 0.7 * v + 0.3 * seen.variance;
      }
      row += size;
    }
    for (std::int64_t j = 0; j < kColumns; ++j) {
      EXPECT_NEAR(value_of(layer, kMean, j), mean[static_cast<std::size_t>(j)], 1e-12);
      EXPECT_NEAR(value_of(layer, kVariance, j), variance[static_cast<std::size_t>(j)], 1e-12);
    }
  }
  EXPECT_EQ(value_of(layer, kBatches), 4 * 4);  // a micro-batch without rows is none
}

TEST(BatchNormalisation, EvaluationIsByTheRunningStatistics) {
  const auto owner = norm_of("deferred");
  Layer& layer = *owner;
  step(layer, {8}, 0, DType::F64);
  PassContext context = training_context();
  context.training = false;
  Stash stash;
  const Tensor given = rows_of(DType::F64, 100, 3);
  const TensorList output = layer.forward(context, TensorList(given.clone()), stash);
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < kColumns; ++j) {
      const auto at = static_cast<std::size_t>(i * kColumns + j);
      EXPECT_NEAR(output[0].as<double>()[at],
                  (given.as<double>()[at] - value_of(layer, kMean, j)) /
                      std::sqrt(value_of(layer, kVariance, j) + 1e-5),
                  1e-12);
    }
}

TEST(BatchNormalisation, Statistics_ChangeAtStepEndUnlessFrozen) {
  for (const auto statistics : {"deferred", "immediate"}) {
    const auto owner = norm_of(statistics);
    Layer& layer = *owner;
    run(layer, rows_of(DType::F64, 0, 8));
    EXPECT_EQ(value_of(layer, kMean, 1), 0);
    EXPECT_EQ(value_of(layer, kVariance, 1), 1);
    layer.parameters()[kMean]->frozen = true;
    layer.update_statistics();
    EXPECT_EQ(value_of(layer, kMean, 1), 0);
    layer.parameters()[kMean]->frozen = false;
    layer.update_statistics();
    EXPECT_GT(value_of(layer, kMean, 1), 1);
    for (Parameter* parameter : layer.parameters()) parameter->gradient.fill_zero();
    const double after = value_of(layer, kMean, 1);
    layer.update_statistics();  // of a step that saw nothing
    EXPECT_EQ(value_of(layer, kMean, 1), after);
  }
}

}  // namespace
}  // namespace millrace::test
