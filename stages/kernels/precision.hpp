// From a run-time dtype to the template for float or double; built-in layers know these two only.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

inline void require_float(DType dtype, std::string_view who) {
  require(dtype == DType::F32 || dtype == DType::F64,
          [&] { return std::string(who) + " computes in f32 or f64, not in " + name_of(dtype); });
}

/// body(T{}) with T = float or double.
template <class Body>
void with_precision(DType dtype, Body&& body) {
  if (dtype == DType::F64) {
    std::forward<Body>(body)(double{});
  } else {
    std::forward<Body>(body)(float{});
  }
}

template <class T>
T* values(Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}

template <class T>
const T* values(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data());
}

/// `count` numbers of f32 in numbers of `precision`, f16 or bf16, rounded as round_to says.
void narrow(DType precision, const float* from, std::int64_t count, void* to);

[[nodiscard]] inline Tensor copy_of(const PassContext& context, const Tensor& from) {
  Tensor copy = context.make(from.dtype(), from.dims());
  if (from.bytes() != 0) std::memcpy(copy.data(), from.data(), from.bytes());
  return copy;
}

}  // namespace millrace
