// Collectives on every transport: the same bits on every rank, and those of a plain loop.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>

#include "millrace/core/random.hpp"
#include "millrace/transport/process_group.hpp"
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

TEST_P(TransportConformance, AllReduce_AddsInRankOrder) {
  for (const int world : {1, 2, 3, 8})
    for (const std::size_t count : {std::size_t{0},
                                    std::size_t{1},
                                    std::size_t{37},
                                    std::size_t{16384},
                                    std::size_t{40001}}) {
      auto ends = connect(world);
      const Tensor expected = sum_in_rank_order(world, count);
      on_every_rank(ends, [&](Endpoint& end) {
        ProcessGroup group(end, kSoon);
        Tensor tensor = values_of(end.rank().value, count);
        group.all_reduce(tensor, ReduceOp::Sum, Label::Values);
        EXPECT_TRUE(same(tensor, expected)) << world << " ranks, " << count << " values";
      });
    }
}

/// Several pieces a block, none of them of the same length.
TEST_P(TransportConformance, ReduceScatter_LeavesTheOwnBlock) {
  constexpr int kElements = 1'500'001;
  auto ends = connect(3);

  on_every_rank(ends, [&](Endpoint& end) {
    const auto value_at = [](int rank, std::size_t i) {
      return static_cast<float>(0.1 * (rank + 1)) * static_cast<float>(i % 1001);
    };
    const int own = end.rank().value;
    Tensor tensor(DType::F32, {kElements});
    for (std::size_t i = 0; i < kElements; ++i) tensor.as<float>()[i] = value_at(own, i);
    ProcessGroup(end, kSoon).reduce_scatter(tensor, ReduceOp::Sum, Label::Values);
    int wrong = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      const bool is_mine = i >= std::size_t{kElements} * static_cast<std::size_t>(own) / 3 &&
                           i < std::size_t{kElements} * (static_cast<std::size_t>(own) + 1) / 3;
      const float sum = (value_at(0, i) + value_at(1, i)) + value_at(2, i);
      wrong += tensor.as<float>()[i] == (is_mine ? sum : value_at(own, i)) ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0);
  });
}

TEST_P(TransportConformance, MaximaOfDoublesKeepNaN) {
  auto ends = connect(3);

  on_every_rank(ends, [&](Endpoint& end) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> values = {
        1.0 * end.rank().value, -1.0 * end.rank().value, end.rank() == Rank{1} ? nan : 5.0};
    ProcessGroup(end, kSoon).all_reduce(values, ReduceOp::Max, Label::Values);
    EXPECT_EQ(values[0], 2);
    EXPECT_EQ(values[1], 0);
    EXPECT_TRUE(std::isnan(values[2]));
  });
}

TEST_P(TransportConformance, BroadcastAndGatherKeepRankOrder) {
  auto ends = connect(4);

  on_every_rank(ends, [&](Endpoint& end) {
    ProcessGroup group(end, kSoon);
    for (int root = 0; root < 4; ++root) {
      TensorList tensors(filled(DType::I32, {3}, end.rank().value));
      group.broadcast(root, tensors, Label::Values);
      EXPECT_TRUE(same(tensors[0], filled(DType::I32, {3}, root)));

      const auto all =
          group.gather(root, TensorList(filled(DType::U8, {5}, end.rank().value)), Label::Values);
      ASSERT_EQ(all.size(), end.rank() == Rank{root} ? 4U : 0U);
      for (std::size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(same(all[i][0], filled(DType::U8, {5}, static_cast<int>(i))));
    }
  });
}

TEST_P(TransportConformance, EverybodyGathersWhatEverybodyHasInRankOrder) {
  auto ends = connect(4);

  on_every_rank(ends, [&](Endpoint& end) {
    ProcessGroup group(end, kSoon);
    const int own = end.rank().value;  // of different lengths, and none of rank 0's
    const auto all =
        group.all_gather(TensorList(filled(DType::F32, {50'000 * own}, own)), Label::Values);
    ASSERT_EQ(all.size(), 4U);
    for (int i = 0; i < 4; ++i)
      EXPECT_TRUE(same(all[static_cast<std::size_t>(i)][0], filled(DType::F32, {50'000 * i}, i)));
  });
}

TEST_P(TransportConformance, AStepHasRoomForAnyNumberOfCollectives) {
  auto ends = connect(2);
  constexpr int kMore = 66'000;  // than a frame has numbers for
  constexpr int kAhead = 100;

  on_every_rank(ends, [&](Endpoint& end) {
    ProcessGroup group(end, kSoon);
    for (int i = 0; i < kMore; ++i) {
      TensorList nothing;
      group.broadcast(0, nothing, Label::Values);
      if (i % kAhead == 0) group.barrier(Label::Values);
    }
  });
}

TEST_P(TransportConformance, NobodyLeavesABarrierBeforeTheLastHasCome) {
  auto ends = connect(4);
  const std::string arrived = directory() + "/arrived";  // a letter for each arrival

  on_every_rank(ends, [&](Endpoint& end) {
    ProcessGroup group(end, kSoon);
    for (std::uintmax_t round = 1; round <= 10; ++round) {
      std::ofstream(arrived, std::ios::app) << 'x';
      group.barrier(Label::Values);
      EXPECT_GE(std::filesystem::file_size(arrived), 4 * round);
    }
  });
}

TEST_P(TransportConformance, CancelledGroup_EndsAllWaits) {
  auto ends = connect(3);

  on_every_rank(ends, [&](Endpoint& end) {
    ProcessGroup group(end, kSoon);
    if (end.rank() == Rank{1}) group.cancel("rank 1 has no data");
    try {
      group.barrier(Label::Values);
      ADD_FAILURE() << "rank 1 did not come";
    } catch (const Cancelled& cancelled) {
      EXPECT_STREQ(cancelled.what(), "rank 1 has no data");
    }
  });
  ProcessGroup().cancel("no rank receives it");
}

TEST_P(TransportConformance, GroupsThatShareTwoRanksDoNotMix) {
  auto ends = connect(3);
  const std::vector<Rank> all = {Rank{0}, Rank{1}, Rank{2}};
  const std::vector<Rank> low = {Rank{0}, Rank{1}};

  on_every_rank(ends, [&](Endpoint& end) {
    ProcessGroup everyone(end, all, 0, kSoon);
    double total = 1;
    double part = 10;
    if (end.rank() != Rank{2})
      ProcessGroup(end, low, 1, kSoon)
          .all_reduce(std::span(&part, 1), ReduceOp::Sum, Label::Values);
    everyone.all_reduce(std::span(&total, 1), ReduceOp::Sum, Label::Values);
    EXPECT_EQ(total, 3);
    EXPECT_EQ(part, end.rank() == Rank{2} ? 10 : 20);
  });
}

TEST_P(TransportConformance, MembersThatDisagreeAboutTheSizeAreTold) {
  auto ends = connect(2);

  on_every_rank(ends, [](Endpoint& end) {
    if (end.rank() == Rank{1}) {
      std::vector<double> values(3);
      EXPECT_THROW(ProcessGroup(end, kSoon).all_reduce(values, ReduceOp::Sum, Label::Values),
                   TransportError);
      return;
    }
    std::vector<double> values(2);
    std::string message;
    try {
      ProcessGroup(end, kSoon).all_reduce(values, ReduceOp::Sum, Label::Values);
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
