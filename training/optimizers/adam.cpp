// Descent by the ratio of two moments. Adam and AdamW differ only in where the weight decay enters.
#include <cmath>

#include "training/optimizers/rules.hpp"

namespace millrace::rules {
namespace {

class Adam final : public Rule {
 public:
  using Rule::Rule;

  [[nodiscard]] int slots() const override { return 2; }
  [[nodiscard]] std::string_view slot_name(int slot) const override {
    return slot == 0 ? "first_moment" : "second_moment";
  }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>> state) const override {
    const bool decoupled = options().kind == OptimizerKind::AdamW;
    const double decay = decay_of(settings, options());
    const auto t = static_cast<double>(settings.number);
    const auto coupled_decay = static_cast<float>(decoupled ? 0.0 : decay);
    const auto shrink = static_cast<float>(decoupled ? 1.0 - settings.learning_rate * decay : 1.0);
    const auto step =
        static_cast<float>(settings.learning_rate / (1.0 - std::pow(options().beta1, t)));
    const auto unbias = static_cast<float>(1.0 / (1.0 - std::pow(options().beta2, t)));
    const Factors at(settings, options());
    const auto epsilon = static_cast<float>(options().epsilon);
    float* __restrict__ w = value.data();
    const float* __restrict__ gradients = gradient.data();
    float* __restrict__ first = state[0].data();
    float* __restrict__ second = state[1].data();
    for (std::size_t i = 0; i < value.size(); ++i) {
      const float g = at.factor * gradients[i] + coupled_decay * w[i];
      first[i] = at.b1 * first[i] + at.rest1 * g;
      second[i] = at.b2 * second[i] + at.rest2 * (g * g);
      w[i] = shrink * w[i] - step * first[i] / (std::sqrt(unbias * second[i]) + epsilon);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> adam(const OptimizerOptions& options) {
  return std::make_unique<Adam>(options);
}

}  // namespace millrace::rules
