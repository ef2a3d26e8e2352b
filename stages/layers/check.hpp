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

/// "f32 [samples, positions, 64]".
inline std::string sequences_of(DType dtype, std::int64_t columns) {
  return to_string(TensorType{dtype, {kSamples, kPositions, columns}});
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

/// Throws InvalidArgument unless `tensor` is sequences [samples, positions, columns] of the layer's
/// dtype.
inline void check_sequences(const Layer& layer,
                            const char* what,
                            const Tensor& tensor,
                            std::int64_t columns) {
  const bool fits = tensor && tensor.dtype() == layer.dtype() && tensor.dims().size() == 3 &&
                    tensor.dims()[2] == columns;
  check_tensor(layer, what, tensor, fits, [&] { return sequences_of(layer.dtype(), columns); });
}

/// Throws InvalidArgument unless the inputs are one such tensor. Returns its extents.
inline const Dims& infer_sequences(const Layer& layer,
                                   std::span<const TensorType> inputs,
                                   std::int64_t columns) {
  if (inputs.size() != 1 || inputs[0].dtype != layer.dtype() || inputs[0].dims.size() != 3 ||
      inputs[0].columns() != columns)
    refuse_inputs(layer, sequences_of(layer.dtype(), columns), inputs);
  return inputs[0].dims;
}

[[nodiscard]] inline bool all_known(const Dims& dims) {
  return std::ranges::all_of(dims, [](std::int64_t extent) { return extent >= 1; });
}

/// The extents after the first. Throws InvalidArgument, naming what is `wanted`, where there are
/// none.
[[nodiscard]] inline Dims extents_of(const TensorType& type, const char* wanted) {
  require(type.dims.size() >= 2,
          [&] { return std::string("takes ") + wanted + ", got " + to_string(type); });
  return Dims(std::span(type.dims.begin() + 1, type.dims.end()));
}

/// The image in [samples, height, width, channels]. Throws InvalidArgument for other types.
[[nodiscard]] inline ImageShape image_of(const TensorType& type) {
  constexpr const char* kImages = "images [samples, height, width, channels]";
  require(type.dims.size() == 4 && all_known(extents_of(type, kImages)),
          [&] { return std::string("takes ") + kImages + ", got " + to_string(type); });
  return {.height = type.dims[1], .width = type.dims[2], .channels = type.dims[3]};
}

}  // namespace millrace
