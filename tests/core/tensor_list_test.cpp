// TensorList: what it holds survives a move, within and beyond its inline places.
#include "millrace/core/tensor_list.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

namespace millrace {
namespace {

static_assert(!std::is_copy_constructible_v<TensorList> &&
              std::is_nothrow_move_constructible_v<TensorList>);

TEST(TensorList, HoldsMoreThanItsInlineFour) {
  TensorList list;
  for (std::int64_t i = 0; i < 7; ++i) list.push_back(Tensor(DType::U8, {i}));

  TensorList moved(std::move(list));

  ASSERT_EQ(moved.size(), 7U);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(moved[i].bytes(), i);
  EXPECT_EQ(moved.bytes(), 21U);
  moved.clear();
  EXPECT_TRUE(moved.empty());
}

}  // namespace
}  // namespace millrace
