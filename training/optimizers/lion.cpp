// Steps of one length for every element, in the direction of an interpolated momentum's sign: one
// array of state where Adam has two.
#include "training/optimizers/rules.hpp"

namespace millrace::rules {
namespace {

/// -1, 0 or 1, without a branch.
float sign(float x) {
  return static_cast<float>(x > 0) - static_cast<float>(x < 0);
}

class Lion final : public Rule {
 public:
  using Rule::Rule;

  [[nodiscard]] int slots() const override { return 1; }
  [[nodiscard]] std::string_view slot_name(int) const override { return "momentum"; }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>> state) const override {
    const Factors at(settings, options());
    float* __restrict__ w = value.data();
    const float* __restrict__ gradients = gradient.data();
    float* __restrict__ m = state[0].data();
    for (std::size_t i = 0; i < value.size(); ++i) {
      const float g = at.factor * gradients[i];
      w[i] -= at.rate * (sign(at.b1 * m[i] + at.rest1 * g) + at.decay * w[i]);
      m[i] = at.b2 * m[i] + at.rest2 * g;
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> lion(const OptimizerOptions& options) {
  return std::make_unique<Lion>(options);
}

}  // namespace millrace::rules
