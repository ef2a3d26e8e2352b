// GELU in the tanh form: f(z) = z/2 (1 + tanh(u)) = z g with u = a (z + c z^3), a = sqrt(2/pi),
// c = 0.044715 and g = 1 / (1 + e^(-2u)). f'(z) = g + z g (1 - g) 2 a (1 + 3 c z^2).
#pragma once

#include "stages/kernels/exponential.hpp"

namespace millrace::detail {

struct Gelu {
  template <class T>
  using Slope = T;

  static constexpr double kTwiceA = 1.5957691216057308;
  static constexpr double kC = 0.044715;

  template <class T>
  static T gate(T z) {
    return T(1) / (T(1) + exponential(-T(kTwiceA) * (z + T(kC) * z * z * z)));
  }

  template <class T>
  static T value(T z) {
    return z * gate(z);
  }

  template <class T>
  static T slope(T z) {
    const T g = gate(z);
    return g + z * g * (T(1) - g) * T(kTwiceA) * (T(1) + T(3 * kC) * z * z);
  }

  template <class T>
  static T chain(T gradient, T slope) {
    return gradient * slope;
  }
};

}  // namespace millrace::detail
