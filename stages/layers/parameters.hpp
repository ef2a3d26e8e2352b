// Parameters of layers: named at once, given memory and first values by `initialize`.
#pragma once

#include <algorithm>
#include <string>

#include "millrace/core/random.hpp"
#include "millrace/stages/stage.hpp"
#include "stages/kernels/precision.hpp"

namespace millrace {

[[nodiscard]] inline Parameter parameter_of(std::uint32_t layer, const char* name, bool decays) {
  Parameter parameter;
  parameter.name = "layers." + std::to_string(layer) + "." + name;
  parameter.decays = decays;
  return parameter;
}

/// Memory for value and gradient, both zero.
inline void allocate(Parameter& parameter, DType dtype, const Dims& dims) {
  for (Tensor* tensor : {&parameter.value, &parameter.gradient}) {
    *tensor = Tensor(dtype, dims);
    tensor->fill_zero();
  }
}

/// Values uniform in [-bound, bound), 24 bits each: word i of the key's stream for element i.
inline void fill_uniform(Tensor& tensor, const RandomKey& key, double bound) {
  with_precision(tensor.dtype(), [&]<class T>(T) {
    const auto values = tensor.as<T>();
    for (std::size_t i = 0; i < values.size(); i += 4) {
      const auto words = random_block(key, static_cast<std::uint32_t>(i / 4));
      for (std::size_t j = i; j < std::min(i + 4, values.size()); ++j) {
        const double unit = (static_cast<double>(words[j - i] >> 8U) + 0.5) * (1.0 / 16777216.0);
        values[j] = static_cast<T>((2 * unit - 1) * bound);
      }
    }
  });
}

}  // namespace millrace
