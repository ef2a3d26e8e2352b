// A copy of a tensor in the context's memory.
#pragma once

#include <cstring>

#include "millrace/stages/stage.hpp"

namespace millrace::detail {

[[nodiscard]] inline Tensor copy_of(const PassContext& context, const Tensor& from) {
  Tensor copy = context.make(from.dtype(), from.dims());
  if (from.bytes() != 0) std::memcpy(copy.data(), from.data(), from.bytes());
  return copy;
}

}  // namespace millrace::detail
