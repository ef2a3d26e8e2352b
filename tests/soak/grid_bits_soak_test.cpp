// The matrix of grids in a thousand of its cases.
#include <cstddef>
#include <cstdint>
#include <iostream>

#include <gtest/gtest.h>

#include "training/grid_matrix.hpp"

namespace millrace::testing_training {
namespace {

TEST(GridMatrixSoak, DrawnCases_HaveBitsOfOneProcess) {
  constexpr std::uint64_t kSeed = 17;
  constexpr std::size_t kCases = 1'000;
  std::cout << kCases << " of " << grid_matrix().cases() << " cases, seed " << kSeed << "\n";
  for (const test::Choice& choice : grid_matrix().sample(kSeed, kCases)) {
    SCOPED_TRACE(grid_matrix().text(choice));
    const GridCase of = grid_case_of(choice);
    EXPECT_EQ(run(of), wanted(of));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace millrace::testing_training
