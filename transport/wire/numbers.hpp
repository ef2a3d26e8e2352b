// Numbers in a header: little-endian on every host, and refused at the sender where they do not
// fit.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>

#include "millrace/core/error.hpp"

namespace millrace::wire {

/// The bytes of a number on this host as those of a frame, and back.
template <std::size_t size>
[[nodiscard]] inline std::array<std::byte, size> in_order(std::array<std::byte, size> bytes) {
  if constexpr (std::endian::native == std::endian::big) std::ranges::reverse(bytes);
  return bytes;
}

template <class T>
inline void put(std::span<std::byte> bytes, std::size_t at, T value) {
  const auto raw = in_order(std::bit_cast<std::array<std::byte, sizeof(T)>>(value));
  std::memcpy(bytes.data() + at, raw.data(), raw.size());
}

template <class T>
[[nodiscard]] inline T get(std::span<const std::byte> bytes, std::size_t at) {
  std::array<std::byte, sizeof(T)> raw;
  std::memcpy(raw.data(), bytes.data() + at, raw.size());
  return std::bit_cast<T>(in_order(raw));
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
