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

}  // namespace millrace::rules
