// Cutting a model's layers into stages. A cut is a list of boundaries b_0 = 0 < b_1 < ... < b_S =
// L: stage s holds layers [b_s, b_(s+1)).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace millrace {

/// Layers [first, last).
struct LayerRange {
  int first = 0;
  int last = 0;
};

/// Those of a stage.
[[nodiscard]] inline LayerRange layers_of(std::span<const int> boundaries, std::size_t stage) {
  const auto own = boundaries.subspan(stage, 2);
  return {own[0], own[1]};
}

/// Stages of L / S layers, rounded: b_s = floor(s L / S), so that sizes differ by at most one.
/// Throws InvalidArgument when stages < 1 or more stages than layers are asked for.
[[nodiscard]] std::vector<int> even_boundaries(int layers, int stages);

/// Checks a cut given by hand. Throws InvalidArgument naming the first wrong boundary unless the
/// list runs strictly upwards from 0 to `layers`.
void check_boundaries(std::span<const int> boundaries, int layers);

/// The cut whose slowest stage is fastest, for layers that take `seconds` each. Exact, by dynamic
/// programming over (stages, layers). Among the cuts with that slowest stage: the one with the
/// least sum of squared stage times (the most even rest), and among those the one whose boundaries
/// come first in lexicographic order. Cost: O(stages layers^2). Throws InvalidArgument on a
/// negative or non-finite time, stages < 1 or more stages than layers.
[[nodiscard]] std::vector<int> balanced_boundaries(std::span<const double> seconds, int stages);

}  // namespace millrace
