// Mean and variance of every column of a matrix, and sums of columns, in double and in row order:
// vector code across columns, one order per column whatever the vector width.
#pragma once

#include <cstdint>

namespace millrace::detail {

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

}  // namespace millrace::detail
