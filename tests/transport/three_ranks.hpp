// A step of a pipeline of three ranks, small enough to be repeated under every fault, and options
// that have it find faults soon.
#pragma once

#include <chrono>

#include <gtest/gtest.h>

#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/process_group.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/conformance.hpp"

namespace millrace::testing_transport {

inline constexpr int kRanks = 3;

inline ZeroMqOptions quick(const PrivateDirectory& directory) {
  ZeroMqOptions options;
  options.world = kRanks;
  options.directory = directory.path();
  options.job = 9;
  options.probe_after = std::chrono::milliseconds(4);
  return options;
}

inline MessageTag tag_of(Direction direction, int stage, int micro_batch, std::uint64_t step) {
  return {step, direction, Replica{}, Stage{stage}, MicroBatch{micro_batch}, Slice{}};
}

inline Tensor value(int stage, int micro_batch, std::uint64_t step) {
  return filled(DType::F32, {40, 16}, static_cast<int>(step) * 100 + stage * 10 + micro_batch);
}

/// What a pipeline of three ranks does in a step: two micro-batches there and back, then a sum.
inline void one_step(Endpoint& end, std::uint64_t step) {
  const int self = end.rank().value;
  for (int i = 0; i < 2; ++i) {
    const auto forward = [&](int stage) { return tag_of(Direction::Forward, stage, i, step); };
    if (self > 0) {
      EXPECT_TRUE(
          same(end.receive(Rank{self - 1}, forward(self), soon())[0], value(self, i, step)));
    }
    if (self + 1 < kRanks) {
      TensorList list(value(self + 1, i, step));
      list.push_back(Tensor());
      end.send(Rank{self + 1}, forward(self + 1), std::move(list));
    }
  }
  for (int i = 0; i < 2; ++i) {
    const auto backward = [&](int stage) { return tag_of(Direction::Backward, stage, i, step); };
    if (self + 1 < kRanks) {
      EXPECT_TRUE(
          same(end.receive(Rank{self + 1}, backward(self), soon())[0], value(self, i, step)));
    }
    if (self > 0)
      end.send(Rank{self - 1}, backward(self - 1), TensorList(value(self - 1, i, step)));
  }
  ProcessGroup together(end, kSoon);
  together.begin_step(step);
  double sum = 1.0 + self;
  together.all_reduce(std::span<double>(&sum, 1), ReduceOp::Sum, Label::Values);
  EXPECT_EQ(sum, 6.0);
}

}  // namespace millrace::testing_transport
