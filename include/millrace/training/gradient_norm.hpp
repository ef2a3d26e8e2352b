// The one gradient norm of a step, and the one clip factor that follows from it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace millrace {

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
