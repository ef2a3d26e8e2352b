// Optimizers against what PyTorch's of the same name did, recorded in tests/reference.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/training/optimizer.hpp"
#include "training/ten_line_reader.hpp"

namespace millrace {
namespace {

constexpr std::size_t kSteps = 100;

/// A recording; its settings are those of record_optimizers.py.
class Recording {
 public:
  explicit Recording(const std::string& kind) {
    std::ifstream stream(
        std::string(MILLRACE_SOURCE_DIR) + "/tests/reference/" + kind + ".safetensors",
        std::ios::binary);
    tensors_ = testing_training::tensors_in({std::istreambuf_iterator<char>(stream), {}});
  }

  /// One row of a tensor whose first extent counts `rows`.
  template <class Number>
  [[nodiscard]] std::vector<Number> row(const std::string& name,
                                        std::size_t step,
                                        std::size_t rows) const {
    const std::string& bytes = tensors_.at(name);
    std::vector<Number> numbers(bytes.size() / rows / sizeof(Number));
    std::memcpy(numbers.data(),
                bytes.data() + step * numbers.size() * sizeof(Number),
                numbers.size() * sizeof(Number));
    return numbers;
  }

  [[nodiscard]] double number(const std::string& name, std::size_t step) const {
    return row<double>(name, step, kSteps).at(0);
  }

 private:
  std::map<std::string, std::string> tensors_;
};

/// The largest difference is at most 1e-6 of the recorded tensor's largest value.
void expect_near(const std::vector<float>& got,
                 const std::vector<float>& recorded,
                 const std::string& what) {
  ASSERT_EQ(got.size(), recorded.size());
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(recorded[i])));
    difference = std::max(difference,
                          std::abs(static_cast<double>(got[i]) - static_cast<double>(recorded[i])));
  }
  EXPECT_GT(largest, 0) << what;
  EXPECT_LE(difference, 1e-6 * largest) << what;
}

UpdateSettings settings_of(const Recording& recording, std::size_t step, const std::string& name) {
  UpdateSettings settings;
  settings.number = static_cast<std::int64_t>(step) + 1;
  settings.learning_rate = recording.number("learning_rate", step);
  if (name.starts_with("layers.2.")) settings.learning_rate *= 0.5;
  settings.gradient_factor = recording.number("gradient_factor", step);
  settings.decays = name.ends_with("weight");
  return settings;
}

/// One step from the recorded state, beside the next recorded one.
void replay(const Optimizer& optimizer,
            const Recording& recording,
            const std::string& name,
            std::size_t step) {
  const auto recorded = [&](const std::string& part, std::size_t at) {
    return recording.row<float>(name + "." + part, at, kSteps + 1);
  };
  std::vector<float> value = recorded("value", step);
  std::vector<float> gradient = recording.row<float>(name + ".gradient", step, kSteps);
  std::vector<std::string> parts;
  std::vector<std::vector<float>> slots;
  for (int slot = 0; slot < optimizer.slots(); ++slot) {
    parts.emplace_back(optimizer.slot_name(slot));
    slots.push_back(recorded(parts.back(), step));
  }
  const std::vector<std::span<float>> state(slots.begin(), slots.end());
  apply(optimizer, settings_of(recording, step, name), value, gradient, state);

  const std::string where = " of " + name + " in step " + std::to_string(step);
  expect_near(value, recorded("value", step + 1), "value" + where);
  for (std::size_t slot = 0; slot < slots.size(); ++slot)
    expect_near(slots[slot], recorded(parts[slot], step + 1), parts[slot] + where);
}

class Reference : public testing::TestWithParam<const char*> {};

TEST_P(Reference, PyTorch_IsMetInHundredSteps) {
  const Recording recording(GetParam());
  OptimizerOptions options = optimizer_defaults(optimizer_kind(GetParam()));
  options.weight_decay = 0.1;
  const auto optimizer = make_optimizer(options);
  for (const char* name : {"layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"})
    for (std::size_t step = 0; step < kSteps; ++step) replay(*optimizer, recording, name, step);
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         Reference,
                         testing::Values("sgd", "momentum", "nesterov", "adam", "adamw"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace millrace
