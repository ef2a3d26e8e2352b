// Runs a layer's passes on drawn numbers and compares what they say with central differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/random.hpp"
#include "millrace/stages/layer.hpp"

namespace millrace::test {

/// Uniform in [-1, 1), of either dtype; `stream` tells tensors apart.
inline Tensor drawn(DType dtype, const Dims& dims, std::uint32_t stream) {
  Tensor tensor(dtype, dims);
  const RandomKey key{.seed = 7, .purpose = Purpose::Test, .sample = stream};
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const double value = 2 * random_uniform(key, static_cast<std::uint32_t>(i)) - 1;
    const auto at = static_cast<std::size_t>(i);
    if (dtype == DType::F64) {
      tensor.as<double>()[at] = value;
    } else {
      tensor.as<float>()[at] = static_cast<float>(value);
    }
  }
  return tensor;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.dims() == b.dims() &&
         std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

inline PassContext training_context() {
  PassContext context;
  context.seed = 3;
  context.step = 5;
  context.first_sample = 11;
  return context;
}

inline void randomize_parameters(Layer& layer) {
  std::uint32_t stream = 100;
  for (Parameter* parameter : layer.parameters()) {
    parameter->value = drawn(layer.dtype(), parameter->value.dims(), stream++);
    parameter->gradient.fill_zero();
  }
}

/// Sum of the outputs weighted by `gradient`: the scalar whose derivatives the passes must give.
inline double weighted_output(Layer& layer, const Tensor& input, const Tensor& gradient) {
  Stash stash;
  const Tensor output = layer.forward(training_context(), input.clone(), stash);
  double sum = 0;
  for (std::size_t i = 0; i < output.as<double>().size(); ++i)
    sum += output.as<double>()[i] * gradient.as<double>()[i];
  return sum;
}

/// Compares `told` with (f(v + h) - f(v - h)) / 2h at every element v of `variable`.
inline void expect_central_differences(Tensor& variable,
                                       const Tensor& told,
                                       const std::function<double()>& function,
                                       const std::string& what) {
  constexpr double kStep = 1e-5;
  constexpr double kTolerance = 1e-8;
  ASSERT_EQ(variable.dims(), told.dims()) << what;
  for (std::size_t i = 0; i < variable.as<double>().size(); ++i) {
    double& value = variable.as<double>()[i];
    const double before = value;
    value = before + kStep;
    const double above = function();
    value = before - kStep;
    const double below = function();
    value = before;
    const double expected = (above - below) / (2 * kStep);
    EXPECT_NEAR(told.as<double>()[i], expected, kTolerance * std::max(1.0, std::abs(expected)))
        << what << ", element " << i;
  }
}

/// I and W of an f64 layer against central differences in the input and every parameter.
inline void expect_right_gradients(Layer& layer, std::int64_t rows) {
  randomize_parameters(layer);
  Tensor input = drawn(DType::F64, {rows, layer.input_columns()}, 1);
  const Tensor gradient = drawn(DType::F64, {rows, layer.output_columns()}, 2);
  const PassContext context = training_context();
  Stash stash;
  (void)layer.forward(context, input.clone(), stash);
  const Tensor input_gradient = layer.backward_input(context, gradient.clone(), stash, true);
  layer.backward_weight(context, stash);

  const auto function = [&] { return weighted_output(layer, input, gradient); };
  expect_central_differences(input, input_gradient, function, layer.describe() + " input");
  for (Parameter* parameter : layer.parameters())
    expect_central_differences(
        parameter->value, parameter->gradient, function, layer.describe() + " " + parameter->name);
}

}  // namespace millrace::test
