// Tensor: alignment, ownership, and what is refused.
#include "millrace/core/tensor.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include "millrace/core/tensor_pool.hpp"

namespace millrace {
namespace {

static_assert(!std::is_copy_constructible_v<Tensor> &&
              std::is_nothrow_move_constructible_v<Tensor>);

bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0;
}

TEST(Tensor, OwnsAlignedMemoryOfItsShape) {
  const Tensor tensor(DType::F32, {3, 5});

  EXPECT_TRUE(is_aligned(tensor.data()));
  EXPECT_EQ(tensor.bytes(), 60U);
  EXPECT_EQ(tensor.rows(), 3);
  EXPECT_EQ(tensor.columns(), 5);
  EXPECT_EQ(to_string(tensor.dims()), "3x5");
}

TEST(Tensor, WithoutElementsIsStillATensor) {
  const Tensor tensor(DType::F32, {0, 5});

  EXPECT_TRUE(tensor);
  EXPECT_EQ(tensor.elements(), 0);
  EXPECT_EQ(tensor.bytes(), 0U);
}

TEST(Tensor, MovingLeavesNothingBehind) {
  Tensor source(DType::U8, {4});
  const void* data = source.data();

  const Tensor target(std::move(source));

  EXPECT_EQ(target.data(), data);
  // NOLINTBEGIN(bugprone-use-after-move,clang-analyzer-cplusplus.Move): the claim under test
  EXPECT_FALSE(source);
  EXPECT_EQ(source.elements(), 0);
  // NOLINTEND(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
}

TEST(Tensor, ReturnsBorrowedMemoryToItsOwnerOnce) {
  int released = 0;
  float memory[4] = {1, 2, 3, 4};
  {
    Tensor first(
        DType::F32,
        {4},
        memory,
        [](void*, std::size_t, void* owner) noexcept { ++*static_cast<int*>(owner); },
        &released);
    const Tensor second(std::move(first));
    EXPECT_EQ(second.as<float>()[2], 3.0F);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST(Tensor, IsZeroUnlessItIsToBeUninitialised) {
  {
    Tensor before(DType::F32, {1000});
    std::ranges::fill(before.as<float>(), 1.0F);
  }
  const Tensor tensor(DType::F32, {1000});
  for (const float value : tensor.as<float>()) ASSERT_EQ(value, 0.0F);
  EXPECT_EQ(Tensor::uninitialised(DType::F32, {3, 5}).bytes(), 60U);
}

TEST(Tensor, HasABoundedNumberOfBytes) {
  EXPECT_EQ(bytes_of(DType::F32, {3, 5}), 60U);
  EXPECT_EQ(bytes_of(DType::F64, {}), 8U);
  EXPECT_EQ(bytes_of(DType::F64, {0, INT64_MAX}), 0U);
  const std::int64_t most = std::int64_t{1} << 62U;
  EXPECT_EQ(bytes_of(DType::U8, {most}), std::size_t{1} << 62U);
  TensorPool pool;
  for (const Dims& dims : {Dims{-1},
                           Dims{3, -1},
                           Dims{-2, -2},
                           Dims{most + 1},
                           Dims{INT64_MAX},
                           Dims{most, 4},
                           Dims{most, most},
                           Dims{INT64_MIN}}) {
    EXPECT_THROW((void)bytes_of(DType::U8, dims), InvalidArgument) << to_string(dims);
    EXPECT_THROW((void)pool.make(DType::U8, dims), InvalidArgument) << to_string(dims);
    EXPECT_THROW(Tensor(DType::U8, dims), InvalidArgument) << to_string(dims);
  }
  EXPECT_EQ(pool.blocks_allocated(), 0U);
}

TEST(Tensor, RefusesTheWrongTypeAndNegativeOrHugeShapes) {
  Tensor tensor(DType::F32, {2});
  EXPECT_THROW((void)tensor.as<double>(), InvalidArgument);
  EXPECT_THROW(Tensor(DType::F32, {-1}), InvalidArgument);
  EXPECT_THROW(Tensor(DType::F64, {INT64_MAX, INT64_MAX}), InvalidArgument);
  EXPECT_THROW(tensor.reshape({3}), InvalidArgument);
  EXPECT_THROW(tensor.reshape({-1, -2}), InvalidArgument);
  EXPECT_THROW((void)tensor.borrow_rows(1, 2), InvalidArgument);
  EXPECT_THROW((void)tensor.borrow_rows(1, INT64_MAX), InvalidArgument);
  EXPECT_THROW(Dims({1, 1, 1, 1, 1, 1, 1}), InvalidArgument);
}

TEST(Tensor, OwnMemory_HasReadableMargins) {
  TensorPool pool;
  for (const Tensor& tensor : {Tensor(DType::U8, {77}), pool.make(DType::U8, {77})}) {
    ASSERT_EQ(tensor.margins(), Margins::Whole);
    const auto around = tensor.bytes_and_margins();
    EXPECT_EQ(around.size(), 77 + 2 * kAlignment);
    EXPECT_EQ(around.data() + kAlignment, tensor.data());
    EXPECT_EQ(std::count(around.begin(), around.begin() + kAlignment, std::byte{0}), 64);
  }

  Tensor whole(DType::U8, {4, 16});
  EXPECT_EQ(whole.borrow_rows(1, 2).margins(), Margins::None);
  EXPECT_THROW((void)whole.borrow_rows(1, 2).bytes_and_margins(), InvalidArgument);
  const Tensor moved = std::move(whole);
  EXPECT_EQ(moved.margins(), Margins::Whole);
}

TEST(Tensor, MovedFrom_IsEmpty) {
  for (const Dims& dims : {Dims{}, Dims{1}, Dims{3, 2}}) {
    Tensor whole(DType::F32, dims);
    const Tensor moved(std::move(whole));
    Tensor never;

    for (Tensor* nothing : {&whole, &never}) {
      EXPECT_FALSE(*nothing);
      EXPECT_EQ(nothing->rows(), 0);
      EXPECT_EQ(nothing->columns(), 0);
      EXPECT_EQ(nothing->elements(), 0);
      EXPECT_THROW(nothing->reshape({1}), InvalidArgument);
    }
    EXPECT_EQ(moved.rows(), dims.size() == 0 ? 1 : dims[0]);
  }
}

template <class Given>
constexpr bool lends_rows = requires(Given tensor) {
  std::forward<Given>(tensor).borrow_rows(0, 1);
};
static_assert(lends_rows<Tensor&> && !lends_rows<Tensor&&>, "rows of a temporary would dangle");

TEST(Tensor, References_AreCountedAndHaveNoBytes) {
  int object = 1;  // references to it
  static constexpr ReferenceCount kCount{
      .retain = [](void* it) noexcept { ++*static_cast<int*>(it); },
      .release = [](void* it) noexcept { --*static_cast<int*>(it); }};
  {
    const Tensor first = Tensor::reference(&object, 3, kCount);
    const Tensor second = first.another_reference();
    const Tensor third = second.clone();

    EXPECT_EQ(object, 3);
    EXPECT_TRUE(third.is_reference());
    EXPECT_EQ(third.data(), &object);
    EXPECT_EQ(third.rows(), 3);
    EXPECT_EQ(third.bytes(), 0U);
    EXPECT_THROW((void)first.bytes_and_margins(), InvalidArgument);
    EXPECT_THROW((void)Tensor(DType::F32, {3}).another_reference(), InvalidArgument);
  }
  EXPECT_EQ(object, 0);
}

TEST(Tensor, BorrowedRowsAreTheSameMemory) {
  Tensor tensor(DType::F32, {3, 2});
  for (std::size_t i = 0; i < 6; ++i) tensor.as<float>()[i] = static_cast<float>(i);

  const Tensor middle = tensor.borrow_rows(1, 1);

  EXPECT_EQ(middle.as<float>()[0], 2.0F);
  EXPECT_EQ(middle.as<float>()[1], 3.0F);
}

}  // namespace
}  // namespace millrace
