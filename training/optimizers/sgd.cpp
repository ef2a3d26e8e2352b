// Gradient descent without memory.
#include "training/optimizers/rules.hpp"

namespace millrace::rules {
namespace {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerOptions& options) : options_(options) {}

  [[nodiscard]] int slots() const override { return 0; }
  [[nodiscard]] std::string_view slot_name(int) const override { return ""; }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>>) const override {
    const auto rate = static_cast<float>(settings.learning_rate);
    const auto factor = static_cast<float>(settings.gradient_factor);
    const auto decay = static_cast<float>(decay_of(settings, options_));
    float* w = value.data();
    const float* g = gradient.data();
    for (std::size_t i = 0; i < value.size(); ++i) w[i] -= rate * (factor * g[i] + decay * w[i]);
  }

 private:
  OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> sgd(const OptimizerOptions& options) {
  return std::make_unique<Sgd>(options);
}

}  // namespace millrace::rules
