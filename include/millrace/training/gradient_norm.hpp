// The one gradient norm of a step, and the one clip factor that follows from it.
#pragma once

#include <optional>
#include <span>

namespace millrace {

/// Sum of squares in double, in a fixed order that depends on the length alone (sixteen lanes, each
/// ascending, added pairwise at the end), so that every machine with the same instruction set gets
/// the same bits. Not finite exactly when an element is not. Cost: O(n).
[[nodiscard]] double sum_of_squares(std::span<const float> values);

/// The norm of a whole model's gradient and what it means for the update.
struct GradientNorm {
  double norm = 0;        ///< Euclidean, over all stages
  double factor = 1;      ///< what every gradient is multiplied by
  bool overflow = false;  ///< a gradient is not finite: the update is skipped everywhere
};

/// Adds the parameters' sums of squares in the order given (global parameter order), takes the
/// root, and clips: factor = limit / norm where norm > limit, else 1 (Pascanu et al., ICML 2013,
/// without the epsilon that some libraries add). Throws InvalidArgument unless limit is above 0.
[[nodiscard]] GradientNorm gradient_norm(std::span<const double> sums_of_squares,
                                         std::optional<double> limit);

}  // namespace millrace
