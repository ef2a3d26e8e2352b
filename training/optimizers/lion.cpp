// Steps of one length for every element, in the direction of an interpolated momentum's sign: one
// array of state where Adam has two.
#include "training/optimizers/rules.hpp"

namespace millrace::rules {
namespace {

/// -1, 0 or 1, without a branch.
float sign(float x) {
  return static_cast<float>(x > 0) - static_cast<float>(x < 0);
}

class Lion final : public Optimizer {
 public:
  explicit Lion(const OptimizerOptions& options) : options_(options) {}

  [[nodiscard]] int slots() const override { return 1; }
  [[nodiscard]] std::string_view slot_name(int) const override { return "momentum"; }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>> state) const override {
    const auto rate = static_cast<float>(settings.learning_rate);
    const auto factor = static_cast<float>(settings.gradient_factor);
    const auto decay = static_cast<float>(decay_of(settings, options_));
    const auto b1 = static_cast<float>(options_.beta1);
    const auto b2 = static_cast<float>(options_.beta2);
    const auto rest1 = static_cast<float>(1.0 - options_.beta1);
    const auto rest2 = static_cast<float>(1.0 - options_.beta2);
    float* __restrict__ w = value.data();
    const float* __restrict__ gradients = gradient.data();
    float* __restrict__ m = state[0].data();
    for (std::size_t i = 0; i < value.size(); ++i) {
      const float g = factor * gradients[i];
      w[i] -= rate * (sign(b1 * m[i] + rest1 * g) + decay * w[i]);
      m[i] = b2 * m[i] + rest2 * g;
    }
  }

 private:
  OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> lion(const OptimizerOptions& options) {
  return std::make_unique<Lion>(options);
}

}  // namespace millrace::rules
