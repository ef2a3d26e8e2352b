// What a tensor between layers is, before there is one: its dtype, its shape with the extents that
// only the data tell, and whether a gradient comes back for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/core/dims.hpp"
#include "millrace/core/dtype.hpp"

namespace millrace {

/// Extents that follow from the unit that a layer works on.
inline constexpr std::int64_t kSamples = -1;  ///< the first extent: samples of the micro-batch
inline constexpr std::int64_t kPositions =
    -2;  ///< the second, of sequences: positions of the slice

/// How much of the data a unit is.
struct UnitSize {
  std::int64_t samples = 0;
  std::int64_t positions = 1;

  friend bool operator==(const UnitSize&, const UnitSize&) = default;
};

/// "f32 [samples, positions, 64]". Thread-safety: a value.
struct TensorType {
  DType dtype = DType::F32;
  Dims dims;
  /// False: nobody wants the derivative by it, as of token ids and of what the data give.
  bool has_gradient = true;

  /// Numbers in the last extent; 1 for a scalar.
  [[nodiscard]] std::int64_t columns() const {
    return dims.size() == 0 ? 1 : dims[dims.size() - 1];
  }

  friend bool operator==(const TensorType&, const TensorType&) = default;
};

/// The type with the unit's extents put in.
[[nodiscard]] TensorType sized(TensorType type, const UnitSize& size);

/// Bytes of a tensor of this type in a unit of that size.
[[nodiscard]] std::size_t bytes_of(const TensorType& type, const UnitSize& size);

/// "f32 [samples, positions, 64]".
[[nodiscard]] std::string to_string(const TensorType& type);

}  // namespace millrace
