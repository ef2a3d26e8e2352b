// A look at the gradients of a step, layer by layer: what vanishes, what explodes, what is not
// finite.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/stages/stage.hpp"

namespace millrace {

/// The gradients of one layer: of all parameters whose names are the same up to the first number
/// ("layers.0" of "layers.0.weight"); another parameter is a layer of its own.
struct LayerGradients {
  std::string layer;
  std::int64_t elements = 0;
  double norm = 0;              ///< Euclidean, of those that are finite
  double largest = 0;           ///< magnitude, of those that are finite
  std::int64_t zeros = 0;       ///< elements that are exactly 0
  std::int64_t not_finite = 0;  ///< infinite or NaN
  bool frozen = false;          ///< every parameter is, so that nothing moves along it
};

/// Layers in the order of their numbers.
struct GradientInspection {
  std::int64_t step = 0;  ///< the mini-batch, counted from 1
  std::vector<LayerGradients> layers;
};

/// Of these parameters, in the order of their layers' numbers. In Trainer::before_update this looks
/// at any step. Cost: O(elements).
[[nodiscard]] std::vector<LayerGradients> inspect_gradients(
    std::span<const Parameter* const> parameters);

/// A table, and under it a sentence for every layer that learns nothing or has what is not finite.
[[nodiscard]] std::string to_string(const GradientInspection& inspection);

}  // namespace millrace
