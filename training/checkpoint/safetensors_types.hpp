// The element types of the safetensors format: what they are called there, and how wide they are.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "millrace/core/tensor.hpp"

namespace millrace {

struct SafetensorsType {
  std::string_view name;
  std::uint64_t bits;
  std::optional<DType> dtype;  ///< none: this library cannot hold it
};

inline constexpr std::array<SafetensorsType, 20> kSafetensorsTypes = {{
    {"BOOL", 8, {}},           {"F4", 4, {}},           {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},        {"U8", 8, DType::U8},    {"I8", 8, {}},
    {"F8_E5M2", 8, {}},        {"F8_E4M3", 8, {}},      {"F8_E8M0", 8, {}},
    {"I16", 16, {}},           {"U16", 16, {}},         {"F16", 16, DType::F16},
    {"BF16", 16, DType::BF16}, {"I32", 32, DType::I32}, {"U32", 32, {}},
    {"F32", 32, DType::F32},   {"C64", 64, {}},         {"F64", 64, DType::F64},
    {"I64", 64, DType::I64},   {"U64", 64, {}},
}};

/// Null for a name that the format does not have.
[[nodiscard]] constexpr const SafetensorsType* safetensors_type(std::string_view name) {
  for (const SafetensorsType& type : kSafetensorsTypes)
    if (type.name == name) return &type;
  return nullptr;
}

[[nodiscard]] constexpr std::string_view safetensors_name(DType dtype) {
  for (const SafetensorsType& type : kSafetensorsTypes)
    if (type.dtype == dtype) return type.name;
  return {};
}

}  // namespace millrace
