// Sums over the rows of a matrix, in row order: vector code across columns, one order per column.
#pragma once

#include <cstdint>

#include "stages/kernels/blocks.hpp"

namespace millrace::detail {

/// body(first, last) over ranges that cover columns [0, columns) of so many rows, for columns that
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

}  // namespace millrace::detail
