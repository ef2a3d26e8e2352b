// Collectives on every transport: the same bits on every rank, and those of a plain loop.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>

#include "millrace/core/random.hpp"
#include "millrace/transport/collectives.hpp"
#include "transport/conformance.hpp"

namespace millrace::testing_transport {

namespace {

using testing::HasSubstr;

/// Values whose sum depends on the order of addition.
float value(int rank, std::size_t i) {
  const double scale = std::pow(10.0, rank % 5 - 2);
  return static_cast<float>(
      scale * (random_uniform({.seed = 11, .sample = static_cast<std::uint32_t>(rank)},
                              static_cast<std::uint32_t>(i)) -
               0.5));
}

Tensor values_of(int rank, std::size_t count) {
  Tensor tensor(DType::F32, {static_cast<std::int64_t>(count)});
  for (std::size_t i = 0; i < count; ++i) tensor.as<float>()[i] = value(rank, i);
  return tensor;
}

Tensor sum_in_rank_order(int world, std::size_t count) {
  Tensor sum = values_of(0, count);
  for (int rank = 1; rank < world; ++rank)
    for (std::size_t i = 0; i < count; ++i) sum.as<float>()[i] += value(rank, i);
  return sum;
}

TEST_P(TransportConformance, AllReduceAddsInRankOrderWithTheSameBitsEverywhere) {
  for (const int world : {1, 2, 3, 8})
    for (const std::size_t count : {std::size_t{0},
                                    std::size_t{1},
                                    std::size_t{37},
                                    std::size_t{16384},
                                    std::size_t{40001}}) {
      auto ends = connect(world);
      const Tensor expected = sum_in_rank_order(world, count);
      on_every_rank(ends, [&](Endpoint& end) {
        Collectives collectives(end);
        Tensor tensor = values_of(end.rank().value, count);
        collectives.all_reduce(tensor, ReduceOp::Sum, soon());
        EXPECT_TRUE(same(tensor, expected)) << world << " ranks, " << count << " values";
      });
    }
}

TEST_P(TransportConformance, MaximaOfDoublesKeepNaN) {
  auto ends = connect(3);

  on_every_rank(ends, [&](Endpoint& end) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> values = {
        1.0 * end.rank().value, -1.0 * end.rank().value, end.rank() == Rank{1} ? nan : 5.0};
    Collectives(end).all_reduce(values, ReduceOp::Max, soon());
    EXPECT_EQ(values[0], 2);
    EXPECT_EQ(values[1], 0);
    EXPECT_TRUE(std::isnan(values[2]));
  });
}

TEST_P(TransportConformance, BroadcastAndGatherKeepRankOrder) {
  auto ends = connect(4);

  on_every_rank(ends, [&](Endpoint& end) {
    Collectives collectives(end);
    for (int root = 0; root < 4; ++root) {
      TensorList tensors(filled(DType::I32, {3}, end.rank().value));
      collectives.broadcast(Rank{root}, tensors, soon());
      EXPECT_TRUE(same(tensors[0], filled(DType::I32, {3}, root)));

      const auto all = collectives.gather(
          Rank{root}, TensorList(filled(DType::U8, {5}, end.rank().value)), soon());
      ASSERT_EQ(all.size(), end.rank() == Rank{root} ? 4U : 0U);
      for (std::size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(same(all[i][0], filled(DType::U8, {5}, static_cast<int>(i))));
    }
  });
}

TEST_P(TransportConformance, AStepHasRoomForAnyNumberOfCollectives) {
  auto ends = connect(2);
  constexpr int kMore = 66'000;  // than a frame has numbers for
  constexpr int kAhead = 100;

  on_every_rank(ends, [&](Endpoint& end) {
    Collectives collectives(end);
    for (int i = 0; i < kMore; ++i) {
      TensorList nothing;
      collectives.broadcast(Rank{0}, nothing, soon());
      if (i % kAhead == 0) collectives.barrier(soon());
    }
  });
}

TEST_P(TransportConformance, NobodyLeavesABarrierBeforeTheLastHasCome) {
  auto ends = connect(4);
  const std::string arrived = directory() + "/arrived";  // a letter for each arrival

  on_every_rank(ends, [&](Endpoint& end) {
    Collectives collectives(end);
    for (std::uintmax_t round = 1; round <= 10; ++round) {
      std::ofstream(arrived, std::ios::app) << 'x';
      collectives.barrier(soon());
      EXPECT_GE(std::filesystem::file_size(arrived), 4 * round);
    }
  });
}

TEST_P(TransportConformance, GroupsThatShareTwoRanksDoNotMix) {
  auto ends = connect(3);
  const std::vector<Rank> all = {Rank{0}, Rank{1}, Rank{2}};
  const std::vector<Rank> low = {Rank{0}, Rank{1}};

  on_every_rank(ends, [&](Endpoint& end) {
    Collectives everyone(end, all, 0);
    double total = 1;
    double part = 10;
    if (end.rank() != Rank{2})
      Collectives(end, low, 1).all_reduce(std::span(&part, 1), ReduceOp::Sum, soon());
    everyone.all_reduce(std::span(&total, 1), ReduceOp::Sum, soon());
    EXPECT_EQ(total, 3);
    EXPECT_EQ(part, end.rank() == Rank{2} ? 10 : 20);
  });
}

TEST_P(TransportConformance, MembersThatDisagreeAboutTheSizeAreTold) {
  auto ends = connect(2);

  on_every_rank(ends, [](Endpoint& end) {
    if (end.rank() == Rank{1}) {
      std::vector<double> values(3);
      EXPECT_THROW(Collectives(end).all_reduce(values, ReduceOp::Sum, soon()), TransportError);
      return;
    }
    std::vector<double> values(2);
    std::string message;
    try {
      Collectives(end).all_reduce(values, ReduceOp::Sum, soon());
    } catch (const Mismatch& mismatch) {
      message = mismatch.what();
      end.cancel(message);
    }
    EXPECT_THAT(message, HasSubstr("rank 1"));
    EXPECT_THAT(message, HasSubstr("2 f64 values with 3 f64 values"));
  });
}

}  // namespace

}  // namespace millrace::testing_transport
