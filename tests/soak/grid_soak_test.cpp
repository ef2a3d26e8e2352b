// The points of the grid that take the search over V blocks seconds each: 12 and 16 ranks.
#include <gtest/gtest.h>

#include "plan/grid_checks.hpp"

namespace millrace {
namespace {

TEST(GridSoak, BlockSearch_IsRightForManyRanks) {
  testing_plan::expect_right_everywhere(find_schedule("v-zb"), 9, 16);
}

}  // namespace
}  // namespace millrace
