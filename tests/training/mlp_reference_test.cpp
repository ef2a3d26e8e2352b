// The perceptron 784-512-512-10 against losses and gradients that PyTorch recorded
// (tests/reference/record_mlp.py), each of ten steps from a state that both sides compute.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/stages/models.hpp"
#include "training/ten_line_reader.hpp"

namespace millrace {
namespace {

constexpr std::uint32_t kSteps = 10;
constexpr std::int64_t kSamples = 32;
constexpr std::uint32_t kSampledRows = 8;
constexpr double kTolerance = 1e-5;  // of a tensor's largest value

// The streams of a step, as the script numbers them.
constexpr std::uint32_t kPixels = 0;
constexpr std::uint32_t kClasses = 1;
constexpr std::uint32_t kFirstLayer = 2;  // weight, bias and sampled rows of each layer

/// Number i of a step's stream: an integer below `below`.
std::uint32_t drawn(std::uint32_t step,
                    std::uint32_t stream,
                    std::uint32_t i,
                    std::uint32_t below) {
  std::uint32_t number = i + 0x9E3779B9U * (16 * step + stream);
  number = (number ^ (number >> 16U)) * 0x85EBCA6BU;
  number = (number ^ (number >> 13U)) * 0xC2B2AE35U;
  return (number ^ (number >> 16U)) % below;
}

Tensor pixels(std::uint32_t step) {
  Tensor tensor(DType::F32, {kSamples, 784});
  std::uint32_t i = 0;
  for (float& value : tensor.as<float>())
    value = static_cast<float>(drawn(step, kPixels, i++, 16)) / 16;
  return tensor;
}

Tensor classes(std::uint32_t step) {
  Tensor tensor(DType::I32, {kSamples});
  std::uint32_t i = 0;
  for (std::int32_t& value : tensor.as<std::int32_t>())
    value = static_cast<std::int32_t>(drawn(step, kClasses, i++, 10));
  return tensor;
}

/// "layers.2.bias" is the bias of layer 2.
std::uint32_t stream_of(const std::string& name) {
  const auto layer = static_cast<std::uint32_t>(name.at(sizeof "layers." - 1) - '0');
  return kFirstLayer + 3 * layer + (name.ends_with("bias") ? 1 : 0);
}

/// Loss of a step; the gradients are in the parameters.
double run(StageModule& whole, std::uint32_t step) {
  for (Parameter* parameter : whole.parameters()) {
    std::uint32_t i = 0;
    for (float& value : parameter->value.as<float>())
      value = (static_cast<float>(drawn(step, stream_of(parameter->name), i++, 15)) - 7) / 64;
    parameter->gradient.fill_zero();
  }
  const TensorList targets(classes(step));
  LossSum loss;
  PassContext context;
  context.targets = &targets;
  context.loss = &loss;
  context.loss_scale = 1 / whole.loss()->weight(targets);
  (void)whole.forward(context, TensorList(pixels(step)));
  (void)whole.backward(context, {});
  return loss.sum / loss.weight;
}

using Values = std::vector<double>;

/// What the script records of a gradient, by the ends of its names.
std::map<std::string, Values> summary(const Parameter& parameter, std::uint32_t step) {
  const auto gradient = std::as_const(parameter.gradient).as<float>();
  if (parameter.name.ends_with("bias")) return {{"", Values(gradient.begin(), gradient.end())}};
  const auto rows = static_cast<std::size_t>(parameter.gradient.rows());
  const std::size_t columns = gradient.size() / rows;
  Values row_sums(rows), column_sums(columns), sampled;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    row_sums[i / columns] += gradient[i];
    column_sums[i % columns] += gradient[i];
  }
  for (std::uint32_t i = 0; i < kSampledRows; ++i) {
    const auto row = gradient.subspan(
        drawn(step, stream_of(parameter.name) + 2, i, static_cast<std::uint32_t>(rows)) * columns,
        columns);
    sampled.insert(sampled.end(), row.begin(), row.end());
  }
  return {{".rows", sampled}, {".row_sums", row_sums}, {".column_sums", column_sums}};
}

/// Values of a step out of a recorded tensor of T.
template <class T>
Values recorded_values(const std::string& bytes, std::uint32_t step) {
  std::vector<T> values(bytes.size() / sizeof(T) / kSteps);
  std::memcpy(
      values.data(), bytes.data() + step * values.size() * sizeof(T), values.size() * sizeof(T));
  return {values.begin(), values.end()};
}

class MlpReference : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream stream(
        std::string(MILLRACE_SOURCE_DIR) + "/tests/reference/mlp_784_512_512_10.safetensors",
        std::ios::binary);
    recorded_ = testing_training::tensors_in({std::istreambuf_iterator<char>(stream), {}});
  }

  [[nodiscard]] Values read(const std::string& name, std::uint32_t step) const {
    const bool is_double = name == "loss" || name.ends_with("_sums");
    return is_double ? recorded_values<double>(recorded_.at(name), step)
                     : recorded_values<float>(recorded_.at(name), step);
  }

  /// The largest difference from what was recorded, by the largest value that was; sums may be
  /// those of numbers that cancel, so for them by the tensor's where that is larger.
  [[nodiscard]] double difference(const std::string& name,
                                  std::uint32_t step,
                                  const Values& values) const {
    const Values wanted = read(name, step);
    EXPECT_EQ(wanted.size(), values.size()) << name;
    const auto whole = recorded_.find(name.substr(0, name.rfind('.')) + ".largest");
    double largest = whole == recorded_.end() ? 0 : read(whole->first, step).at(0);
    double distance = 0;
    for (std::size_t i = 0; i < std::min(wanted.size(), values.size()); ++i) {
      largest = std::max(largest, std::abs(wanted[i]));
      distance = std::max(distance, std::abs(values[i] - wanted[i]));
    }
    return distance / largest;
  }

  std::map<std::string, std::string> recorded_;
};

TEST_F(MlpReference, PyTorch_AgreesInTenSteps) {
  const ModelSpec model = parse_model("mlp:784-512-512-10");
  const auto whole = build_stage(model, std::vector<int>{0, model.layer_count()}, 0, 1);
  whole->reserve(1, 1);
  std::map<std::string, double> worst;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    const double loss = read("loss", step).at(0);
    EXPECT_NEAR(run(*whole, step), loss, kTolerance * loss);
    for (const Parameter* parameter : whole->parameters())
      for (const auto& [end, values] : summary(*parameter, step)) {
        const std::string name = parameter->name + ".gradient" + end;
        const double found = difference(name, step, values);
        EXPECT_LE(found, kTolerance) << name << " in step " << step;
        worst[name] = std::max(worst[name], found);
      }
  }
  EXPECT_EQ(worst.size() + 4, recorded_.size());  // all but loss and three largest magnitudes
  for (const auto& [name, found] : worst)
    std::cout << name << ": largest difference " << found << " of the largest value\n";
}

}  // namespace
}  // namespace millrace
