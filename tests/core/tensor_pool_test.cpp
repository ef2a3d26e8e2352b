// TensorPool: blocks go round, from whatever thread they come back.
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

}  // namespace
}  // namespace millrace
