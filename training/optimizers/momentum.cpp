// Descent along a decaying sum of gradients; Nesterov's form looks one step of it ahead.
#include "training/optimizers/rules.hpp"

namespace millrace::rules {
namespace {

/// `looks_ahead`: Nesterov's form.
template <bool looks_ahead>
class Momentum final : public Rule {
 public:
  using Rule::Rule;

  [[nodiscard]] int slots() const override { return 1; }
  [[nodiscard]] std::string_view slot_name(int) const override { return "momentum"; }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>> state) const override {
    const Factors at(settings, options());
    const auto mu = static_cast<float>(options().momentum);
    float* __restrict__ w = value.data();
    const float* __restrict__ gradients = gradient.data();
    float* __restrict__ v = state[0].data();
    for (std::size_t i = 0; i < value.size(); ++i) {
      const float g = at.factor * gradients[i] + at.decay * w[i];
      v[i] = mu * v[i] + g;
      w[i] -= at.rate * (looks_ahead ? g + mu * v[i] : v[i]);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> momentum(const OptimizerOptions& options) {
  if (options.kind == OptimizerKind::Nesterov) return std::make_unique<Momentum<true>>(options);
  return std::make_unique<Momentum<false>>(options);
}

}  // namespace millrace::rules
