// What one element of a tensor is: its kind, its size and its name.
// The half-width kinds only travel and are stored; C++ has no arithmetic for them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

enum class DType : std::uint8_t { F32, F16, BF16, F64, I32, I64, U8 };

[[nodiscard]] constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::F16:
    case DType::BF16:
      return 2;
    case DType::U8:
      return 1;
  }
  return 0;
}

[[nodiscard]] constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "f32";
    case DType::F16:
      return "f16";
    case DType::BF16:
      return "bf16";
    case DType::F64:
      return "f64";
    case DType::I32:
      return "i32";
    case DType::I64:
      return "i64";
    case DType::U8:
      return "u8";
  }
  return "?";
}

/// The dtype of a C++ type; only the types that have arithmetic in C++ have one.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::F32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::F64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::I32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::I64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::U8;
}

}  // namespace millrace
