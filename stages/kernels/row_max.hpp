// The largest number of a row. Numbers are compared as integers of the same order, because a
// compiler that keeps to IEEE 754 makes vector code of the maximum of integers alone.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace millrace::detail {

/// Of row[0, count), count at least 1; where NaN are among them, NaN or the largest other one.
template <class T>
T row_max(const T* row, std::int64_t count) {
  using Bits = std::conditional_t<sizeof(T) == sizeof(float), std::int32_t, std::int64_t>;
  // Of negative numbers the magnitude is turned round; twice is as they were.
  const auto ordered = [](Bits bits) {
    return bits < 0 ? bits ^ std::numeric_limits<Bits>::max() : bits;
  };
  Bits largest = std::numeric_limits<Bits>::min();
  for (std::int64_t i = 0; i < count; ++i)
    largest = std::max(largest, ordered(std::bit_cast<Bits>(row[i])));
  return std::bit_cast<T>(ordered(largest));
}

}  // namespace millrace::detail
