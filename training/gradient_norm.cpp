// Gradient norm and clipping with fixed orders of summation.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/training/optimizer.hpp"

namespace millrace {

namespace {

double square_sum_of_block(std::span<const float> values) {
  constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  const std::size_t whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<double>(values[i + lane]);
      lanes[lane] += x * x;
    }
  for (std::size_t i = whole; i < values.size(); ++i) {
    const auto x = static_cast<double>(values[i]);
    lanes[i - whole] += x * x;
  }
  for (std::size_t width = kLanes / 2; width > 0; width /= 2)
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

}  // namespace

double sum_of_squares(std::span<const float> values) {
  double sum = 0;
  for (std::size_t first = 0; first < values.size(); first += kNormBlock)
    sum += square_sum_of_block(values.subspan(first, std::min(kNormBlock, values.size() - first)));
  return sum;
}

GradientNorm gradient_norm(std::span<const double> sums_of_squares,
                           std::optional<double> limit,
                           double loss_scale) {
  require(!limit || *limit > 0,
          "the clip norm must be above 0, got " + std::to_string(limit.value_or(0)));
  double sum = 0;
  for (const double part : sums_of_squares) sum += part;
  GradientNorm result;
  result.norm = std::sqrt(sum) / loss_scale;
  result.overflow = !std::isfinite(sum);
  if (limit && !result.overflow && result.norm > *limit) result.factor = *limit / result.norm;
  return result;
}

}  // namespace millrace
