// The exponential function as a loop body that the compiler turns into vector code: the same bits
// for an element wherever it lies, which library vector functions do not promise.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace millrace {

/// e^x within 2 units in the last place; x is clamped to [-87, 88], NaN stays NaN.
/// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2; e^r is its Taylor polynomial of
/// degree 7, whose remainder is below 2^-27 of the value there.
inline float exponential(float x) {
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  x = std::min(std::max(x, -87.0F), 88.0F);
  const float shifted = x * 1.44269504088896341F + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const std::uint32_t exponent =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRounder) + 127U;
  return p * std::bit_cast<float>(exponent << 23U);
}

inline double exponential(double x) {
  return std::exp(x);
}

/// tanh(x): near zero by its odd Taylor series (float) so that small values keep their digits.
inline float hyperbolic_tangent(float x) {
  const float far = 1.0F - 2.0F / (exponential(2.0F * x) + 1.0F);
  const float s = x * x;
  float p = -1382.0F / 155925.0F;
  p = p * s + 62.0F / 2835.0F;
  p = p * s - 17.0F / 315.0F;
  p = p * s + 2.0F / 15.0F;
  p = p * s - 1.0F / 3.0F;
  const float near = x + x * s * p;
  return s < 0.0625F ? near : far;
}

inline double hyperbolic_tangent(double x) {
  return std::tanh(x);
}

}  // namespace millrace
