// Gradient descent without memory.
#include "training/optimizers/rules.hpp"

namespace millrace::rules {
namespace {

class Sgd final : public Rule {
 public:
  using Rule::Rule;

  [[nodiscard]] int slots() const override { return 0; }
  [[nodiscard]] std::string_view slot_name(int) const override { return ""; }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>>) const override {
    const Factors at(settings, options());
    float* w = value.data();
    const float* g = gradient.data();
    for (std::size_t i = 0; i < value.size(); ++i)
      w[i] -= at.rate * (at.factor * g[i] + at.decay * w[i]);
  }
};

}  // namespace

std::unique_ptr<Optimizer> sgd(const OptimizerOptions& options) {
  return std::make_unique<Sgd>(options);
}

}  // namespace millrace::rules
