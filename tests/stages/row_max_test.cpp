// The largest number of a row, for any length and place.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "stages/kernels/reductions.hpp"

namespace millrace {
namespace {

template <class T>
void finds_it_in_every_place(T others, T largest) {
  for (std::int64_t count = 1; count <= 50; ++count)
    for (std::int64_t place = 0; place < count; ++place) {
      std::vector<T> row(static_cast<std::size_t>(count) + 1, others);
      row[static_cast<std::size_t>(place)] = largest;
      row.back() = 100;  // after the row
      EXPECT_EQ(row_max(row.data(), count), largest) << place << " of " << count;
    }
}

TEST(RowMax, IsFoundAtEveryIndex) {
  finds_it_in_every_place<float>(-3.25F, -2.5F);
  finds_it_in_every_place<float>(-1e-30F, 2.5F);
  finds_it_in_every_place<double>(1.5, 2.5);
  finds_it_in_every_place<double>(-std::numeric_limits<double>::infinity(), -1e300);
}

TEST(RowMax, RowWithNaN_IsNaNOrMaximum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(row_max(std::array{1.0F, nan, 2.0F}.data(), 3)));
  EXPECT_EQ(row_max(std::array{1.0F, -nan, 2.0F}.data(), 3), 2);
}

}  // namespace
}  // namespace millrace
