// What every layer checks about a tensor it is given, with one form of message.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/stages/layer.hpp"

namespace millrace::detail {

[[nodiscard]] inline bool is_aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data()) % kAlignment == 0;
}

/// Throws InvalidArgument unless `tensor` is rows of `columns` numbers of the layer's dtype on a
/// 64-byte boundary (bits depend on alignment, so it is a condition and not a wish).
inline void check_rows(const Layer& layer,
                       const char* what,
                       const Tensor& tensor,
                       std::int64_t columns) {
  const bool fits = tensor && tensor.dtype() == layer.dtype() &&
                    (tensor.rows() == 0 || tensor.columns() == columns);
  if (fits && is_aligned(tensor)) return;
  const std::string given =
      tensor ? std::string(name_of(tensor.dtype())) + " " + to_string(tensor.dims()) : "nothing";
  throw InvalidArgument(layer.describe() + ": the " + what + " must be " + name_of(layer.dtype()) +
                        " rows of " + std::to_string(columns) + " on 64-byte boundaries, got " +
                        given + (fits ? " elsewhere" : ""));
}

}  // namespace millrace::detail
