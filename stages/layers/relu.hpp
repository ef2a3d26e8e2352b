// ReLU: f(z) = max(z, 0), f'(z) = 1 for z > 0 and 0 elsewhere. The slope is kept as a byte.
#pragma once

#include <cstdint>

namespace millrace::detail {

struct Relu {
  template <class T>
  using Slope = std::uint8_t;

  template <class T>
  static T value(T z) {
    return z <= T(0) ? T(0) : z;  // a NaN goes through
  }

  template <class T>
  static std::uint8_t slope(T z) {
    return z <= T(0) ? 0 : 1;
  }

  template <class T>
  static T chain(T gradient, std::uint8_t slope) {
    return slope == 0 ? T(0) : gradient;
  }
};

}  // namespace millrace::detail
