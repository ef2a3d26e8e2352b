// Sums along a row in a fixed order that vector code can follow: sixteen running sums, element i to
// sum i mod 16, then the sixteen in order. The order is the same for every vector width.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "stages/kernels/blocks.hpp"

namespace millrace {

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

/// sums[j] = term(0, j) + term(1, j) + ..., added one row after the other in double.
template <class Term>
void column_sums(std::int64_t rows, std::int64_t columns, double* sums, const Term& term) {
  for (std::int64_t j = 0; j < columns; ++j) sums[j] = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) sums[j] += static_cast<double>(term(i, j));
}

/// means[j] and variances[j] (divided by the number of rows, which is at least 1), in two passes.
template <class T>
void column_moments(
    const T* matrix, std::int64_t rows, std::int64_t columns, double* means, double* variances) {
  const auto count = static_cast<double>(rows);
  const auto element = [&](std::int64_t i, std::int64_t j) {
    return static_cast<double>(matrix[i * columns + j]);
  };
  column_sums(rows, columns, means, element);
  for (std::int64_t j = 0; j < columns; ++j) means[j] /= count;
  column_sums(rows, columns, variances, [&](std::int64_t i, std::int64_t j) {
    const double apart = element(i, j) - means[j];
    return apart * apart;
  });
  for (std::int64_t j = 0; j < columns; ++j) variances[j] /= count;
}

/// body(first, last) over ranges that cover columns [0, columns) of `rows` rows, for columns that
/// know nothing of one another.
template <class Body>
void for_columns(const PassContext& context,
                 std::int64_t rows,
                 std::int64_t columns,
                 const Body& body) {
  constexpr std::int64_t kLine = 64;  // of numbers: whole cache lines
  for_rows(context,
           (columns + kLine - 1) / kLine,
           rows * kLine,
           [&](std::int64_t first, std::int64_t last) {
             body(first * kLine, std::min(columns, last * kLine));
           });
}

/// sums[j] += m[0][j] + m[1][j] + ..., added one row after the other.
template <class T>
void add_column_sums(
    const PassContext& context, const T* matrix, std::int64_t rows, std::int64_t columns, T* sums) {
  for_columns(context, rows, columns, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* row = matrix + i * columns;
      for (std::int64_t j = first; j < last; ++j) sums[j] += row[j];
    }
  });
}

}  // namespace millrace
