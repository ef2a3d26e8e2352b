// Sums along a row in a fixed order that vector code can follow: sixteen running sums, element i to
// sum i mod 16, then the sixteen in order. The order is the same for every vector width.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace::detail {

/// term(0) + ... + term(count - 1), in the order described above.
template <class T, class Term>
T row_sum(std::int64_t count, const Term& term) {
  constexpr std::int64_t kLanes = 16;
  std::array<T, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      sums[static_cast<std::size_t>(lane)] += term(i + lane);
  for (; i < count; ++i) sums[static_cast<std::size_t>(i % kLanes)] += term(i);
  T total = 0;
  for (const T sum : sums) total += sum;
  return total;
}

}  // namespace millrace::detail
