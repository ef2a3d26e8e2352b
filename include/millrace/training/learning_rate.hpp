// The learning rate as a pure function of the number of updates done, so that it needs no state and
// a resumed run continues where the saved one stopped.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace millrace {

enum class LearningRateKind : std::uint8_t { Constant, Linear, Cosine };

/// The learning rate of every update.
/// Thread-safety: immutable, share freely.
struct LearningRate {
  LearningRateKind kind = LearningRateKind::Constant;
  double base = 1e-3;              ///< eta, the largest rate; at least 0
  std::int64_t warm_up = 0;        ///< w: updates of the linear warm-up
  std::int64_t total_updates = 0;  ///< T: where Linear and Cosine reach the floor
  double floor = 0;                ///< share of `base` at the end, in [0, 1]
  /// A curve of your own instead of `kind`, `base` and `floor`: f(u), finite and at least 0. The
  /// same in every process that trains.
  std::function<double(std::int64_t update)> function = {};

  /// The rate of update number u, counted from 0:
  /// - u < w: eta (u + 1) / w, so that the first update already moves and update w - 1 has eta; of
  /// a
  ///   curve of your own, f(u) (u + 1) / w;
  /// - after that, with t = (u - w) / (T - w), held in [0, 1]: Constant eta; Linear
  ///   eta (1 - (1 - floor) t); Cosine eta (floor + (1 - floor) (1 + cos(pi t)) / 2) (Loshchilov
  ///   and Hutter, "SGDR", ICLR 2017, without restarts); your own f(u).
  /// A T that is not above w makes t = 1 at once. Throws InvalidArgument when `needs_total`, when
  /// `base`, `floor`, `warm_up` or `total_updates` is out of its range, or f(u) is.
  [[nodiscard]] double at(std::int64_t update) const;

  /// Whether the curve has an end and nobody has said where: Linear or Cosine with T = 0.
  [[nodiscard]] bool needs_total() const;

  /// Throws InvalidArgument when a field is out of its range.
  void check() const;
};

/// "constant", "linear", "cosine".
[[nodiscard]] std::string_view name_of(LearningRateKind kind);

/// The kind called `name`. Throws InvalidArgument that lists the known names.
[[nodiscard]] LearningRateKind learning_rate_kind(std::string_view name);

}  // namespace millrace
