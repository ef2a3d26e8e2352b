// tanh: f(z) = tanh(z), f'(z) = 1 - f(z)^2.
#pragma once

#include "stages/kernels/exponential.hpp"

namespace millrace::detail {

struct Tanh {
  template <class T>
  using Slope = T;

  template <class T>
  static T value(T z) {
    return hyperbolic_tangent(z);
  }

  template <class T>
  static T slope(T z) {
    const T y = hyperbolic_tangent(z);
    return T(1) - y * y;
  }

  template <class T>
  static T chain(T gradient, T slope) {
    return gradient * slope;
  }
};

}  // namespace millrace::detail
