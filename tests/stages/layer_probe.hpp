// Runs a layer's passes on drawn tensors of the types it takes, and compares what they say with
// central differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/random.hpp"
#include "millrace/stages/layer_kinds.hpp"

namespace millrace::test {

/// Uniform in [-1, 1), of either dtype, or ids from 0 to 4; `stream` distinguishes tensors.
inline Tensor drawn(DType dtype, const Dims& dims, std::uint32_t stream) {
  Tensor tensor(dtype, dims);
  const RandomKey key{.seed = 7, .purpose = Purpose::Test, .sample = stream};
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const double value = 2 * random_uniform(key, static_cast<std::uint32_t>(i)) - 1;
    const auto at = static_cast<std::size_t>(i);
    if (dtype == DType::F64) {
      tensor.as<double>()[at] = value;
    } else if (dtype == DType::I32) {
      tensor.as<std::int32_t>()[at] = static_cast<std::int32_t>((value + 1) * 2.5);
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

/// Those that would interrupt the calling thread.
inline std::set<int> unblocked_signals() {
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  std::set<int> unblocked;
  for (int signal = 1; signal <= 64; ++signal)
    if (sigismember(&blocked, signal) != 1) unblocked.insert(signal);
  return unblocked;
}

inline TensorList copies_of(const std::vector<Tensor>& tensors) {
  TensorList list;
  for (const Tensor& tensor : tensors) list.push_back(tensor.clone());
  return list;
}

/// A layer of that kind for one input, with its first parameters.
inline std::unique_ptr<Layer> built(const std::string& kind,
                                    const LayerSettings& settings,
                                    const Dims& dims,
                                    DType dtype = DType::F64,
                                    std::uint32_t number = 0) {
  auto layer = build_layer({kind, settings},
                           std::vector{TensorType{dtype, dims}},
                           {.number = number, .dtype = dtype, .precision = dtype});
  layer->initialize(1);
  return layer;
}

/// One layer, with parameters that are drawn, and what it is given.
class LayerProbe {
 public:
  LayerProbe(const LayerSpec& spec, std::vector<TensorType> types, DType dtype)
      : types_(std::move(types)), layer_(build_layer(spec, types_, {.number = 6, .dtype = dtype})) {
    layer_->initialize(1);
    std::uint32_t stream = 100;
    for (Parameter* parameter : layer_->parameters())
      if (parameter->role == ParameterRole::Trained)
        parameter->value = drawn(dtype, parameter->value.dims(), stream++);
  }

  [[nodiscard]] Layer& layer() const { return *layer_; }
  [[nodiscard]] std::string name() const {
    return layer_->describe() + " of " + to_string(types_.front());
  }
  [[nodiscard]] const std::vector<TensorType>& types() const { return types_; }

  [[nodiscard]] std::vector<TensorType> types(const UnitSize& size) const {
    std::vector<TensorType> types;
    for (const TensorType& type : types_) types.push_back(sized(type, size));
    return types;
  }

  [[nodiscard]] std::vector<Tensor> inputs(const UnitSize& size) const {
    std::vector<Tensor> inputs;
    std::uint32_t stream = 1;
    for (const TensorType& type : types(size))
      inputs.push_back(drawn(type.dtype, type.dims, stream++));
    return inputs;
  }

  /// Gradients as of a weighted sum of the outputs.
  [[nodiscard]] std::vector<Tensor> output_gradients(const UnitSize& size) const {
    std::vector<Tensor> gradients;
    std::uint32_t stream = 50;
    for (const TensorType& type : layer_->infer(types_))
      gradients.push_back(drawn(type.dtype, sized(type, size).dims, stream++));
    return gradients;
  }

 private:
  std::vector<TensorType> types_;
  std::unique_ptr<Layer> layer_;
};

/// Compares `actual` with (f(v + h) - f(v - h)) / 2h at every element v of `variable`.
inline void expect_central_differences(Tensor& variable,
                                       const Tensor& actual,
                                       const std::function<double()>& function,
                                       const std::string& what) {
  constexpr double kStep = 1e-5;
  constexpr double kTolerance = 1e-8;
  ASSERT_EQ(variable.dims(), actual.dims()) << what;
  for (std::size_t i = 0; i < variable.as<double>().size(); ++i) {
    double& value = variable.as<double>()[i];
    const double before = value;
    value = before + kStep;
    const double above = function();
    value = before - kStep;
    const double below = function();
    value = before;
    const double expected = (above - below) / (2 * kStep);
    EXPECT_NEAR(actual.as<double>()[i], expected, kTolerance * std::max(1.0, std::abs(expected)))
        << what << ", element " << i;
  }
}

/// I and W of an f64 layer against central differences in every input that has a gradient and in
/// every parameter.
inline void expect_right_gradients(const LayerProbe& probe, const UnitSize& size) {
  Layer& layer = probe.layer();
  for (Parameter* parameter : layer.parameters()) parameter->gradient.fill_zero();
  std::vector<Tensor> inputs = probe.inputs(size);
  const std::vector<Tensor> gradients = probe.output_gradients(size);
  const PassContext context = training_context();
  Stash stash;
  (void)layer.forward(context, copies_of(inputs), stash);
  const TensorList actual = layer.backward_input(context, copies_of(gradients), stash, true);
  layer.backward_weight(context, stash);

  const auto weighted_outputs = [&] {
    Stash own;
    const TensorList outputs = layer.forward(training_context(), copies_of(inputs), own);
    double sum = 0;
    for (std::size_t k = 0; k < outputs.size(); ++k)
      for (std::size_t i = 0; i < outputs[k].as<double>().size(); ++i)
        sum += outputs[k].as<double>()[i] * gradients[k].as<double>()[i];
    return sum;
  };
  ASSERT_EQ(actual.size(), inputs.size()) << probe.name();
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    EXPECT_EQ(static_cast<bool>(actual[k]), inputs[k].dtype() != DType::I32) << probe.name();
    if (actual[k])
      expect_central_differences(
          inputs[k], actual[k], weighted_outputs, probe.name() + " input " + std::to_string(k));
  }
  for (Parameter* parameter : layer.parameters())
    if (parameter->role == ParameterRole::Trained)
      expect_central_differences(parameter->value,
                                 parameter->gradient,
                                 weighted_outputs,
                                 probe.name() + " " + parameter->name);
}

}  // namespace millrace::test
