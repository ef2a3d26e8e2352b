// Optimizers, groups of parameters with other settings, and the gradient norm of a step. Optimizers
// hold no state: it is kept in f32 arrays of each parameter, so that any partition can load it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// What one update of one parameter needs besides the numbers themselves.
struct UpdateSettings {
  std::int64_t number = 1;     ///< t: updates of this parameter so far, this one included
  double learning_rate = 0;    ///< of this update
  double gradient_factor = 1;  ///< the clip factor; the gradient used is factor * gradient
  bool decays = true;          ///< false for biases and norms: weight decay does not apply
  /// Of the parameter's group, instead of the optimizer's own.
  std::optional<double> weight_decay = {};
  /// Of the whole parameter: what Optimizer::prepare has found, its blocks added up.
  std::span<const double> sums = {};
};

/// An optimizer; derive to write your own.
///
/// An element's new value depends on that element's value, gradient and state alone, and on the
/// sums over its parameter, so results do not depend on how the model is cut into stages.
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

  /// Moves `value` [n] by `gradient` [n], using and changing `state` (slots() spans of [n]). Called
  /// for one part of a parameter after the other, so that all of a part is still near.
  /// Cost: O(n), one pass over memory.
  virtual void update(const UpdateSettings& settings,
                      std::span<float> value,
                      std::span<const float> gradient,
                      std::span<const std::span<float>> state) const = 0;

  /// How many sums over the whole parameter `update` wants to know (a norm, say). Most rules want
  /// none, and need neither this nor `prepare`.
  [[nodiscard]] virtual int sums() const { return 0; }

  /// The pass before `update` of a rule that wants sums: called once for every block of kNormBlock
  /// elements of the parameter (the last may be shorter), in ascending order. Adds the block's
  /// share to `sums` [sums()], which are zero, and may change `state`. The blocks' sums are added
  /// in ascending order and then known to `update` as settings.sums. Cost: O(n).
  virtual void prepare(const UpdateSettings& settings,
                       std::span<const float> value,
                       std::span<const float> gradient,
                       std::span<const std::span<float>> state,
                       std::span<double> sums) const;
};

/// One update of one whole parameter, whose gradient is zero then: `prepare` where the rule wants
/// sums, and `update`. Cost: O(n), one pass over memory, or two.
void apply(const Optimizer& optimizer,
           UpdateSettings settings,
           std::span<float> value,
           std::span<float> gradient,
           std::span<const std::span<float>> state);

/// The two halves of apply, for a part of a parameter that begins at a multiple of kNormBlock: what
/// `prepare` finds of each of its blocks, in `of_blocks` [blocks x sums()]; and, when settings.sums
/// has the sums over the whole parameter, the update.
void prepare_blocks(const Optimizer& optimizer,
                    const UpdateSettings& settings,
                    std::span<const float> value,
                    std::span<const float> gradient,
                    std::span<const std::span<float>> state,
                    std::span<double> of_blocks);
void apply_prepared(const Optimizer& optimizer,
                    const UpdateSettings& settings,
                    std::span<float> value,
                    std::span<float> gradient,
                    std::span<const std::span<float>> state);

/// Adds up what prepare_blocks found, block after block.
[[nodiscard]] std::vector<double> sums_of_blocks(const Optimizer& optimizer,
                                                 std::span<const double> of_blocks);

enum class OptimizerKind : std::uint8_t { Sgd, Momentum, Nesterov, Adam, AdamW, Lamb, Lion };

/// Settings of the built-in optimizers; those that a kind does not name are ignored.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::AdamW;
  double momentum = 0.9;    ///< mu, of Momentum and Nesterov; in [0, 1)
  double beta1 = 0.9;       ///< of Adam, AdamW, Lamb and Lion; in [0, 1)
  double beta2 = 0.999;     ///< of Adam, AdamW, Lamb and Lion; in [0, 1)
  double epsilon = 1e-8;    ///< of Adam, AdamW and Lamb; above 0
  double weight_decay = 0;  ///< lambda; at least 0
};

/// The settings that the kind's paper gives, without weight decay: those of OptimizerOptions, but
/// epsilon = 1e-6 for Lamb and beta2 = 0.99 for Lion.
[[nodiscard]] OptimizerOptions optimizer_defaults(OptimizerKind kind);

/// Makes a built-in optimizer. With g = factor * gradient, eta the learning rate, and lambda = 0
/// for parameters that do not decay:
/// - Sgd: g += lambda w; w -= eta g.
/// - Momentum: g += lambda w; v = mu v + g; w -= eta v. (Sutskever et al., ICML 2013, without
///   Nesterov's look-ahead; the form in which eta may change between updates.)
/// - Nesterov: g += lambda w; v = mu v + g; w -= eta (g + mu v). (Nesterov, 1983; Sutskever et al.,
///   ICML 2013, with w standing where their gradient is taken.)
/// - Adam: g += lambda w; m = b1 m + (1 - b1) g; u = b2 u + (1 - b2) g^2;
///   w -= eta (m / (1 - b1^t)) / (sqrt(u / (1 - b2^t)) + epsilon). (Kingma and Ba, ICLR 2015,
///   algorithm 1.)
/// - AdamW: w -= eta lambda w, then Adam with lambda = 0. (Loshchilov and Hutter, ICLR 2019,
///   algorithm 2, with the decay scaled by the learning rate.)
/// - Lamb: m and u as Adam with lambda = 0; r = (m / (1 - b1^t)) / (sqrt(u / (1 - b2^t)) + epsilon)
///   + lambda w; w -= eta (|w| / |r|) r. The norms are Euclidean, of each whole parameter, and
///   their ratio is 1 where one of them is 0. (You et al., ICLR 2020, algorithm 2, with phi(z) = z;
///   the sums of squares in the blocks and the order of gradient_norm.hpp.)
/// - Lion: c = b1 m + (1 - b1) g; w -= eta (sign(c) + lambda w); m = b2 m + (1 - b2) g, with
///   sign(0) = 0. (Chen et al., NeurIPS 2023, algorithm 2.)
/// Those up to AdamW are the rules of the same names in PyTorch, which has Momentum and Nesterov as
/// settings of its SGD. Throws InvalidArgument when a setting is out of its range.
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options);

/// "sgd", "momentum", "nesterov", "adam", "adamw", "lamb", "lion".
[[nodiscard]] std::string_view name_of(OptimizerKind kind);

/// All of them, in the order of the enumeration.
[[nodiscard]] std::span<const OptimizerKind> optimizer_kinds();

/// The kind called `name`. Throws InvalidArgument that lists the known names.
[[nodiscard]] OptimizerKind optimizer_kind(std::string_view name);

/// Settings of the parameters whose names match. What is not said stays as it is, so a parameter
/// may be in several groups: of those that say a setting, the last one decides it.
struct ParameterGroup {
  std::string pattern;  ///< of global names, `*` for any run of characters: "layers.0.*"
  std::optional<double> learning_rate_factor = {};  ///< times the learning rate; at least 0
  /// Instead of the optimizer's, of those that decay (biases and norms do not); at least 0.
  std::optional<double> weight_decay = {};
  std::optional<bool> frozen = {};  ///< they stay as they are, outside the gradient norm

  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

/// Reads "PATTERN:lr=0.1,weight-decay=0,frozen" with any of these settings, "frozen=no" to free
/// what an earlier group froze. Throws InvalidArgument that says what is allowed.
[[nodiscard]] ParameterGroup parse_parameter_group(std::string_view text);

/// In that form, all digits of its numbers.
[[nodiscard]] std::string to_string(const ParameterGroup& group);

/// Throws InvalidArgument when a number is out of its range.
void check(const ParameterGroup& group);

/// Throws InvalidArgument when the group's pattern matches none of the names, naming the nearest.
void check_names(const ParameterGroup& group, std::span<const std::string> names);

/// Elements of a block of the norm's sum; the last block of a parameter may be shorter.
inline constexpr std::size_t kNormBlock = 4096;

/// How many blocks so many elements have; the last may be shorter.
[[nodiscard]] constexpr std::size_t blocks_of(std::size_t elements) {
  return (elements + kNormBlock - 1) / kNormBlock;
}

/// Sum of squares in double, in an order that depends on the length alone, so that every machine
/// with the same instruction set gets the same bits: blocks of kNormBlock elements, ascending, and
/// inside a block sixteen lanes (lane l adds the elements l, l + 16, ... of the block), added
/// pairwise at the end: lane l and lane l + 8, then l + 4, l + 2, l + 1. Whole blocks can so be
/// added up apart, by whoever holds them. Not finite exactly when an element is not. Cost: O(n).
[[nodiscard]] double sum_of_squares(std::span<const float> values);

/// The norm of a whole model's gradient and what it means for the update.
struct GradientNorm {
  double norm = 0;        ///< Euclidean, over all stages
  double factor = 1;      ///< what every gradient is multiplied by
  bool overflow = false;  ///< a gradient is not finite: the update is skipped everywhere
};

/// Adds the parameters' sums of squares in the order given (global parameter order), takes the
/// root, divides it by the loss scale, and clips: factor = limit / norm where norm > limit, else 1
/// (Pascanu et al., ICML 2013, without the epsilon that some libraries add). Throws InvalidArgument
/// unless limit is above 0.
[[nodiscard]] GradientNorm gradient_norm(std::span<const double> sums_of_squares,
                                         std::optional<double> limit,
                                         double loss_scale = 1);

}  // namespace millrace
