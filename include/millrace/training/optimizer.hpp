// Optimizers: how one parameter moves along its gradient. They hold no state of their own; the
// state lives in f32 arrays beside each parameter, so that it can be saved, moved and loaded into
// another number of stages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

/// What one update of one parameter needs besides the numbers themselves.
struct UpdateSettings {
  std::int64_t number = 1;     ///< t: updates of this parameter so far, this one included
  double learning_rate = 0;    ///< of this update
  double gradient_factor = 1;  ///< the clip factor; the gradient used is factor * gradient
  bool decays = true;          ///< false for biases and norms: weight decay does not apply
};

/// One rule of descent. Derive to write another one: the trainer asks only for this.
///
/// An element's new value depends on that element's value, gradient and state alone, so results do
/// not depend on how the model is cut into stages.
/// Thread-safety: immutable, share freely.
class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// f32 arrays of the parameter's size that this optimizer keeps, zero before the first update.
  [[nodiscard]] virtual int slots() const = 0;
  /// What slot i is called in a saved state: "momentum", "first_moment", ...
  [[nodiscard]] virtual std::string_view slot_name(int slot) const = 0;

  /// Moves `value` [n] by `gradient` [n], using and changing `state` (slots() spans of [n]).
  /// Cost: O(n), one pass over memory.
  virtual void update(const UpdateSettings& settings,
                      std::span<float> value,
                      std::span<const float> gradient,
                      std::span<const std::span<float>> state) const = 0;
};

enum class OptimizerKind : std::uint8_t { Sgd, Momentum, Adam, AdamW };

/// Settings of the built-in optimizers; those that a kind does not name are ignored.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::AdamW;
  double momentum = 0.9;    ///< mu, of Momentum; in [0, 1)
  double beta1 = 0.9;       ///< of Adam and AdamW; in [0, 1)
  double beta2 = 0.999;     ///< of Adam and AdamW; in [0, 1)
  double epsilon = 1e-8;    ///< of Adam and AdamW; above 0
  double weight_decay = 0;  ///< lambda; at least 0
};

/// Makes a built-in optimizer. With g = factor * gradient, eta the learning rate, and lambda = 0
/// for parameters that do not decay:
/// - Sgd: g += lambda w; w -= eta g.
/// - Momentum: g += lambda w; v = mu v + g; w -= eta v. (Sutskever et al., ICML 2013, without
///   Nesterov's look-ahead; the form in which eta may change between updates.)
/// - Adam: g += lambda w; m = b1 m + (1 - b1) g; u = b2 u + (1 - b2) g^2;
///   w -= eta (m / (1 - b1^t)) / (sqrt(u / (1 - b2^t)) + epsilon). (Kingma and Ba, ICLR 2015,
///   algorithm 1.)
/// - AdamW: w -= eta lambda w, then Adam with lambda = 0. (Loshchilov and Hutter, ICLR 2019,
///   algorithm 2, with the decay scaled by the learning rate.)
/// Throws InvalidArgument when a setting is out of its range.
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options);

/// "sgd", "momentum", "adam", "adamw".
[[nodiscard]] std::string_view name_of(OptimizerKind kind);

/// The kind called `name`. Throws InvalidArgument that lists the known names.
[[nodiscard]] OptimizerKind optimizer_kind(std::string_view name);

}  // namespace millrace
