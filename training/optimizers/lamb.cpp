// Adam's direction, in steps as long as the parameter's own norm asks for: what lets very large
// mini-batches keep one learning rate for all layers. The norms need a pass before the step.
#include <algorithm>
#include <array>
#include <cmath>

#include "millrace/training/optimizer.hpp"
#include "training/optimizers/rules.hpp"

namespace millrace::rules {
namespace {

/// What both passes compute once, and the direction r of one element.
struct Direction {
  Direction(const OptimizerOptions& options, const UpdateSettings& settings)
      : unbias1(unbias(options.beta1, settings.number)),
        unbias2(unbias(options.beta2, settings.number)),
        epsilon(static_cast<float>(options.epsilon)),
        decay(static_cast<float>(decay_of(settings, options))) {}

  [[nodiscard]] static float unbias(double beta, std::int64_t number) {
    return static_cast<float>(1.0 / (1.0 - std::pow(beta, static_cast<double>(number))));
  }

  [[nodiscard]] float at(float value, float first, float second) const {
    return unbias1 * first / (std::sqrt(unbias2 * second) + epsilon) + decay * value;
  }

  float unbias1, unbias2, epsilon, decay;
};

class Lamb final : public Rule {
 public:
  using Rule::Rule;

  [[nodiscard]] int slots() const override { return 2; }
  [[nodiscard]] std::string_view slot_name(int slot) const override {
    return slot == 0 ? "first_moment" : "second_moment";
  }
  /// |w|^2 and |r|^2.
  [[nodiscard]] int sums() const override { return 2; }

  void prepare(const UpdateSettings& settings,
               std::span<const float> value,
               std::span<const float> gradient,
               std::span<const std::span<float>> state,
               std::span<double> sums) const override {
    const Direction direction(options(), settings);
    const Factors at(settings, options());
    const float* __restrict__ w = value.data();
    const float* __restrict__ gradients = gradient.data();
    float* __restrict__ first = state[0].data();
    float* __restrict__ second = state[1].data();
    std::array<float, kNormBlock> r;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const float g = at.factor * gradients[i];
      first[i] = at.b1 * first[i] + at.rest1 * g;
      second[i] = at.b2 * second[i] + at.rest2 * (g * g);
      r[i] = direction.at(w[i], first[i], second[i]);
    }
    sums[0] = sum_of_squares(value);
    sums[1] = sum_of_squares(std::span<const float>(r).first(value.size()));
  }

  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float>,
              std::span<const std::span<float>> state) const override {
    const Direction direction(options(), settings);
    const double of_value = std::sqrt(settings.sums[0]);
    const double of_direction = std::sqrt(settings.sums[1]);
    const double trust = of_value > 0 && of_direction > 0 ? of_value / of_direction : 1;
    const auto step = static_cast<float>(settings.learning_rate * trust);
    float* __restrict__ w = value.data();
    const float* __restrict__ first = state[0].data();
    const float* __restrict__ second = state[1].data();
    for (std::size_t i = 0; i < value.size(); ++i)
      w[i] -= step * direction.at(w[i], first[i], second[i]);
  }
};

}  // namespace

std::unique_ptr<Optimizer> lamb(const OptimizerOptions& options) {
  return std::make_unique<Lamb>(options);
}

}  // namespace millrace::rules
