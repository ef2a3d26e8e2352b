// TensorPool: blocks are reused, from any thread that returns them.
#include "millrace/core/tensor_pool.hpp"

#include <cstdint>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(TensorPool, ReusesMemorySoThatSteadyStateAllocatesNothing) {
  TensorPool pool;
  for (int round = 0; round < 100; ++round) {
    const Tensor a = pool.make(DType::F32, {8, 96});
    const Tensor b = pool.make(DType::F32, {8, 96});
    const Tensor c = pool.make(DType::F32, {8, 64});
    for (const Tensor* made : {&a, &b, &c})
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made->data()) % kAlignment, 0U);
    EXPECT_NE(a.data(), b.data());
  }
  EXPECT_EQ(pool.blocks_allocated(), 3U);
}

TEST(TensorPool, TakesBackFromAnotherThread) {
  TensorPool pool;
  Tensor tensor = pool.make(DType::F32, {16});
  std::thread([moved = std::move(tensor)]() mutable { moved = Tensor(); }).join();
  const Tensor again = pool.make(DType::F32, {16});
  EXPECT_EQ(pool.blocks_allocated(), 1U);
}

TEST(TensorPool, Block_ServesTensorsOfHalfItsSize) {
  TensorPool pool;
  for (const std::int64_t rows : {100, 99, 80, 64, 49})
    EXPECT_TRUE(pool.make(DType::F32, {rows, 64}));
  EXPECT_EQ(pool.blocks_allocated(), 1U);
  EXPECT_TRUE(pool.make(DType::F32, {48, 64}));
  EXPECT_EQ(pool.blocks_allocated(), 2U);
}

TEST(TensorPool, WholeBlock_IsKept) {
  TensorPool pool;
  EXPECT_TRUE(pool.make(DType::F32, {100, 64}));
  EXPECT_TRUE(pool.make(DType::F32, {60, 64}));
  EXPECT_TRUE(pool.make(DType::F32, {100, 64}));
  EXPECT_EQ(pool.blocks_allocated(), 1U);
}

TEST(TensorPool, ServesTensorsWithoutElementsFromOneBlock) {
  TensorPool pool;
  for (int round = 0; round < 3; ++round) EXPECT_TRUE(pool.make(DType::F32, {0, 64}));
  EXPECT_EQ(pool.blocks_allocated(), 1U);
}

TEST(TensorPool, ChoosesTheSmallestBlockThatFits) {
  TensorPool pool;
  {
    const Tensor larger = pool.make(DType::F32, {100, 64});
    const Tensor smaller = pool.make(DType::F32, {70, 64});
  }
  const Tensor small = pool.make(DType::F32, {65, 64});
  const Tensor large = pool.make(DType::F32, {100, 64});
  EXPECT_EQ(pool.blocks_allocated(), 2U);
}

}  // namespace
}  // namespace millrace
