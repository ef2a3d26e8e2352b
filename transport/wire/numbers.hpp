// Numbers in a header: little-endian on every host, and refused at the sender where they do not
// fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "millrace/core/error.hpp"

namespace millrace::wire {

template <class T>
void put(std::span<std::byte> bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bytes[at + i] = static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xFFU);
}

template <class T>
[[nodiscard]] T get(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
  return static_cast<T>(value);
}

template <class Field = std::uint16_t>
[[nodiscard]] Field narrow(std::int64_t value, const char* what) {
  constexpr auto kMost = std::numeric_limits<Field>::max();
  require(value >= 0 && value <= kMost, [&] {
    return std::string(what) + " is " + std::to_string(value) +
           ", but a frame's field for it holds 0 to " + std::to_string(kMost);
  });
  return static_cast<Field>(value);
}

}  // namespace millrace::wire
