// What every layer checks about a tensor it is given, with one form of message.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/stages/layer.hpp"
#include "millrace/stages/layer_kinds.hpp"

namespace millrace {

[[nodiscard]] inline bool is_aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data()) % kAlignment == 0;
}

/// Throws InvalidArgument unless `tensor` is `wanted` ("f32 rows of 64") on a 64-byte boundary
/// (bits depend on alignment, so it is a condition).
template <class Wanted>
void check_tensor(
    const Layer& layer, const char* what, const Tensor& tensor, bool fits, const Wanted& wanted) {
  if (fits && is_aligned(tensor)) return;
  const std::string given =
      tensor ? std::string(name_of(tensor.dtype())) + " " + to_string(tensor.dims()) : "nothing";
  throw InvalidArgument(layer.describe() + ": the " + what + " must be " + wanted() +
                        " on 64-byte boundaries, got " + given + (fits ? " elsewhere" : ""));
}

/// Whether the last extents of `dims` are these.
[[nodiscard]] inline bool ends_in(const Dims& dims, const Dims& extents) {
  return dims.size() >= extents.size() &&
         std::equal(extents.begin(), extents.end(), dims.end() - extents.size());
}

/// Throws InvalidArgument unless `tensor` is rows of these extents of the layer's dtype.
inline void check_rows(const RowLayer& layer,
                       const char* what,
                       const Tensor& tensor,
                       const Dims& extents) {
  const bool fits = tensor && tensor.dtype() == layer.dtype() && ends_in(tensor.dims(), extents);
  check_tensor(layer, what, tensor, fits, [&] {
    return std::string(name_of(layer.dtype())) + " rows of " + to_string(extents);
  });
}

/// The one tensor of a list. Throws InvalidArgument naming the layer for another number.
inline Tensor only(const Layer& layer, const char* what, TensorList list) {
  if (list.size() == 1) return std::move(list[0]);
  throw InvalidArgument(layer.describe() + " takes one " + what + ", got " +
                        std::to_string(list.size()));
}

/// Throws InvalidArgument, naming all inputs, for inputs that the layer does not take.
[[noreturn]] inline void refuse_inputs(const Layer& layer,
                                       const std::string& wanted,
                                       std::span<const TensorType> inputs) {
  std::string given;
  for (const TensorType& type : inputs) given += (given.empty() ? "" : ", ") + to_string(type);
  throw InvalidArgument(layer.describe() + " takes " + wanted + ", got " +
                        (given.empty() ? "nothing" : given));
}

/// The image in [samples, height, width, channels]. Throws InvalidArgument for other types.
[[nodiscard]] inline ImageShape image_of(const TensorType& type) {
  require(
      type.dims.size() == 4 && std::all_of(type.dims.begin() + 1,
                                           type.dims.end(),
                                           [](std::int64_t extent) { return extent >= 1; }),
      [&] { return "takes images [samples, height, width, channels], got " + to_string(type); });
  return {.height = type.dims[1], .width = type.dims[2], .channels = type.dims[3]};
}

}  // namespace millrace
