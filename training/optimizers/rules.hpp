// The built-in rules, one file each; two that differ in one term share it. Their loops are plain
// and independent per element, so that the compiler makes vectors of them; scalars that depend on
// the update alone are computed once, in double.
#pragma once

#include <memory>

#include "millrace/training/optimizer.hpp"

namespace millrace::rules {

[[nodiscard]] std::unique_ptr<Optimizer> sgd(const OptimizerOptions& options);
/// Momentum and Nesterov.
[[nodiscard]] std::unique_ptr<Optimizer> momentum(const OptimizerOptions& options);
/// Adam and AdamW.
[[nodiscard]] std::unique_ptr<Optimizer> adam(const OptimizerOptions& options);
[[nodiscard]] std::unique_ptr<Optimizer> lamb(const OptimizerOptions& options);
[[nodiscard]] std::unique_ptr<Optimizer> lion(const OptimizerOptions& options);

/// lambda for the parameter that is being updated.
[[nodiscard]] inline double decay_of(const UpdateSettings& settings,
                                     const OptimizerOptions& options) {
  return settings.decays ? settings.weight_decay.value_or(options.weight_decay) : 0.0;
}

/// The numbers of an update as the loops use them.
struct Factors {
  Factors(const UpdateSettings& settings, const OptimizerOptions& options)
      : rate(static_cast<float>(settings.learning_rate)),
        factor(static_cast<float>(settings.gradient_factor)),
        decay(static_cast<float>(decay_of(settings, options))),
        b1(static_cast<float>(options.beta1)),
        b2(static_cast<float>(options.beta2)),
        rest1(static_cast<float>(1.0 - options.beta1)),
        rest2(static_cast<float>(1.0 - options.beta2)) {}

  float rate, factor, decay, b1, b2, rest1, rest2;
};

/// An optimizer with these options.
class Rule : public Optimizer {
 public:
  explicit Rule(const OptimizerOptions& options) : options_(options) {}

 protected:
  [[nodiscard]] const OptimizerOptions& options() const { return options_; }

 private:
  const OptimizerOptions options_;
};

}  // namespace millrace::rules
