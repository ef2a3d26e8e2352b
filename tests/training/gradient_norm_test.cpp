// The gradient norm against its sums in double, added up without regard to speed.
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/training/optimizer.hpp"

namespace millrace {
namespace {

constexpr std::size_t kElements = 37;  // not a multiple of any vector width

std::vector<float> noise(std::uint32_t stream) {
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < kElements; ++i)
    values[i] = static_cast<float>(
        random_uniform({.seed = 3, .layer = stream}, static_cast<std::uint32_t>(i)) - 0.5);
  return values;
}

TEST(GradientNorm, IsExactForIntegersAtEveryLength) {
  std::vector<float> values;
  double expected = 0;
  for (int n = 0; n < 70; ++n) {
    EXPECT_EQ(sum_of_squares(values), expected) << n;
    values.push_back(static_cast<float>(n - 30));
    expected += double{1} * (n - 30) * (n - 30);
  }
}

/// The order of additions as gradient_norm.hpp writes it down, without regard to speed.
double sum_in_blocks(const std::vector<float>& values) {
  double sum = 0;
  for (std::size_t first = 0; first < values.size(); first += 4096) {
    std::vector<double> lanes(16, 0.0);
    for (std::size_t i = first; i < std::min(first + 4096, values.size()); ++i)
      lanes[(i - first) % 16] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    for (const std::size_t apart : {8U, 4U, 2U, 1U})
      for (std::size_t lane = 0; lane < apart; ++lane) lanes[lane] += lanes[lane + apart];
    sum += lanes[0];
  }
  return sum;
}

TEST(GradientNorm, HasBitsOfOrderedBlocks) {
  std::vector<float> values(3 * 4096 + 17);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(
        random_uniform({.seed = 5, .layer = 1}, static_cast<std::uint32_t>(i)) - 0.3);
  for (const std::size_t n : {1U, 15U, 4095U, 4096U, 4097U, 8192U, 8200U, 12305U}) {
    const std::vector<float> part(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_EQ(sum_of_squares(part), sum_in_blocks(part)) << n;
  }
  double one_after_the_other = 0;  // another order would show
  for (const float value : values)
    one_after_the_other += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_NE(sum_of_squares(values), one_after_the_other);
}

TEST(GradientNorm, ClipsOnlyAboveTheLimit) {
  const std::vector<double> squares{9, 16};

  EXPECT_EQ(gradient_norm(squares, std::nullopt).norm, 5);
  EXPECT_EQ(gradient_norm(squares, std::nullopt).factor, 1);
  EXPECT_EQ(gradient_norm(squares, 5).factor, 1);
  EXPECT_EQ(gradient_norm(squares, 2).factor, 0.4);
  EXPECT_THROW((void)gradient_norm(squares, 0), InvalidArgument);
}

TEST(GradientNorm, ReportsAnyElementThatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (std::size_t place = 0; place < kElements; ++place) {
      std::vector<float> values = noise(1);
      values[place] = bad;
      const std::vector<double> squares{1.0, sum_of_squares(values)};
      EXPECT_TRUE(gradient_norm(squares, 1).overflow) << place;
    }
  const std::vector<float> huge(4, std::numeric_limits<float>::max());
  const std::vector<double> squares{sum_of_squares(huge)};
  EXPECT_FALSE(gradient_norm(squares, 1).overflow);
}

}  // namespace
}  // namespace millrace
