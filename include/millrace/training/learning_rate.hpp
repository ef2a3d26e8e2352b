// The learning rate, a pure function of the number of updates, and the effective batch size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace millrace {

enum class LearningRateKind : std::uint8_t {
  Constant,
  Linear,
  Cosine,
  Step,
  InverseSquareRoot,
  WarmUpStableDecay
};

/// The learning rate of every update.
/// Thread-safety: immutable, share freely.
struct LearningRate {
  LearningRateKind kind = LearningRateKind::Constant;
  double base = 1e-3;              ///< eta, the largest rate; at least 0
  std::int64_t warm_up = 0;        ///< w: updates of the linear warm-up
  std::int64_t total_updates = 0;  ///< T: where the curves that have an end reach it
  double floor = 0;                ///< share of `base` that it never falls below, in [0, 1]
  std::int64_t every =
      0;                ///< k: updates between two steps of Step; 0: a third of T - w, rounded up
  double factor = 0.1;  ///< q: of each of these steps; above 0, at most 1
  /// D: updates of the decay that ends WarmUpStableDecay; 0: a tenth of T, rounded up.
  std::int64_t decay = 0;
  /// A curve of your own instead of `kind` and all that belongs to it: f(u), finite and at least 0.
  /// The same in every process that trains.
  std::function<double(std::int64_t update)> function = {};

  /// The rate of update number u, counted from 0:
  /// - u < w: eta (u + 1) / w, so that the first update already moves and update w - 1 has eta; of
  ///   a curve of your own, f(u) (u + 1) / w;
  /// - after that, with t = (u - w) / (T - w), held in [0, 1]:
  ///   - Constant eta;
  ///   - Linear eta (1 - (1 - floor) t);
  ///   - Cosine eta (floor + (1 - floor) (1 + cos(pi t)) / 2) (Loshchilov and Hutter, "SGDR", ICLR
  ///     2017, without restarts);
  ///   - Step eta max(floor, q^n), with n the whole part of (u - w) / k;
  ///   - InverseSquareRoot eta max(floor, sqrt(max(w, 1) / (u + 1))) (Vaswani et al., NeurIPS 2017,
  ///     with eta for the rate at the end of the warm-up);
  ///   - WarmUpStableDecay eta until update T - D, or w if that is later, and from there to T in a
  ///     straight line to floor eta (Hu et al., "MiniCPM", COLM 2024);
  ///   - your own f(u).
  /// A T that is not above w makes t = 1 at once. Throws InvalidArgument when `needs_total`, when a
  /// field is out of its range, or f(u) is.
  [[nodiscard]] double at(std::int64_t update) const;

  /// Whether the curve follows from T and nobody has said T: of Linear, Cosine and
  /// WarmUpStableDecay, and of Step where `every` is 0.
  [[nodiscard]] bool needs_total() const;

  /// Throws InvalidArgument when a field is out of its range.
  void check() const;
};

/// "constant", "linear", "cosine", "step", "inverse-sqrt", "wsd".
[[nodiscard]] std::string_view name_of(LearningRateKind kind);

/// The kind called `name`. Throws InvalidArgument that lists the known names.
[[nodiscard]] LearningRateKind learning_rate_kind(std::string_view name);

/// The curve that a text names: a kind, and the settings that it has, "cosine", "cosine:floor=0.1",
/// "step:every=200,factor=0.5", "wsd:decay=100". `base`, `warm_up` and `total_updates` are as in
/// LearningRate{}. Throws InvalidArgument for unknown names, the nearest beside them, and for
/// values out of their range.
[[nodiscard]] LearningRate parse_learning_rate(std::string_view text);

/// The text that parse_learning_rate reads as this curve again, all digits of its numbers;
/// "one of its own" where it has a function.
[[nodiscard]] std::string to_string(const LearningRate& rate);

/// How the learning rate follows the mini-batch.
enum class BatchScaling : std::uint8_t { Linear, SquareRoot };

/// The rate for mini-batches of `samples`, when `rate` is right for those of `base`:
/// - Linear: rate * samples / base (Goyal et al., 2017);
/// - SquareRoot: rate * sqrt(samples / base) (Krizhevsky, 2014; for Adam, Malladi et al., NeurIPS
///   2022).
/// Throws InvalidArgument unless samples and base are at least 1.
[[nodiscard]] double scaled_with_batch(double rate,
                                       std::int64_t samples,
                                       std::int64_t base,
                                       BatchScaling scaling);

/// "linear", "sqrt".
[[nodiscard]] std::string_view name_of(BatchScaling scaling);

/// The law called `name`. Throws InvalidArgument that lists the known names.
[[nodiscard]] BatchScaling batch_scaling(std::string_view name);

/// The effective batch: N samples per update in d K m micro-batches.
struct EffectiveBatch {
  std::int64_t samples = 0;        ///< N
  std::int64_t copies = 1;         ///< d, of the model, each with samples of its own
  std::int64_t passes = 1;         ///< K, of the pipeline, whose gradients accumulate
  std::int64_t micro_batches = 1;  ///< m, of one pass of one copy
};

/// What a person is told: "128 samples per update: 8 micro-batches of 16", "100 samples per update:
/// 2 copies x 8 micro-batches, 4 of 7 and 12 of 6". Throws InvalidArgument when a number is below
/// 1, or the micro-batches are more than 10^9.
[[nodiscard]] std::string to_string(const EffectiveBatch& batch);

/// d K m S, the samples per update with micro-batches of S samples each. Throws InvalidArgument
/// when a number is below 1, or the result above 10^9.
[[nodiscard]] std::int64_t samples_of(const EffectiveBatch& batch, std::int64_t micro_batch_size);

/// Throws InvalidParameter unless N = d K m S, naming the m with which N would fit or, where there
/// is none, the nearest N below and above with an m that fits. Else throws as samples_of.
void require_exact(const EffectiveBatch& batch, std::int64_t micro_batch_size);

}  // namespace millrace
