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

TEST(TensorList, RefusesATensorThatItDoesNotHave) {
  TensorList list;
  for (std::size_t size = 0; size < 7; ++size) {
    const TensorList& unchanged = list;
    for (const std::size_t beyond : {size, size + 1, size + 100}) {
      EXPECT_THROW((void)list[beyond], InvalidArgument) << size;
      EXPECT_THROW((void)unchanged[beyond], InvalidArgument) << size;
    }
    list.push_back(Tensor(DType::U8, {1}));
  }
  try {
    (void)TensorList(Tensor(DType::U8, {1}))[1];
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "tensor 1 was asked of a list of 1 tensor");
  }
}

}  // namespace
}  // namespace millrace
