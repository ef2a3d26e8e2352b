// Sums over the rows of a matrix, in row order: vector code across columns, one order per column.
#pragma once

#include <cstdint>

namespace millrace::detail {

/// sums[j] += m[0][j] + m[1][j] + ..., added one row after the other.
template <class T>
void add_column_sums(const T* matrix, std::int64_t rows, std::int64_t columns, T* sums) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* row = matrix + i * columns;
    for (std::int64_t j = 0; j < columns; ++j) sums[j] += row[j];
  }
}

}  // namespace millrace::detail
