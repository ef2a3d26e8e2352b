// Declared depths: never exceeded by any timing, and reached by the worst one.
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/training/rank_parts.hpp"

namespace millrace {
namespace {

using Name = std::tuple<int, int, Direction>;

/// The most messages in `channel` when its receiver moves only when nobody else can.
int fullest(const Program& program, const Name& channel) {
  const auto lazy = static_cast<std::size_t>(std::get<1>(channel));
  std::vector<std::size_t> at(program.ranks.size(), 0);
  std::map<std::tuple<Direction, int, int, int, int>, bool> there;  // stage that receives, unit
  int in_channel = 0;
  int most = 0;
  const auto step = [&](std::size_t rank) {
    if (at[rank] == program.ranks[rank].size()) return false;
    const Action& action = program.ranks[rank][at[rank]];
    const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
    const bool sends = is_send(action.op);
    if (sends || is_receive(action.op)) {
      const int stage = action.stage.value + (sends ? (forward ? 1 : -1) : 0);
      const auto key = std::make_tuple(forward ? Direction::Forward : Direction::Backward,
                                       static_cast<int>(action.replica_number),
                                       stage,
                                       action.micro_batch.value,
                                       action.slice.value);
      if (!sends && !there[key]) return false;
      there[key] = sends;
      const int from =
          sends ? static_cast<int>(rank)
                : program.shape.rank(action.replica(), Stage{stage + (forward ? -1 : 1)}).value;
      const int to =
          sends ? program.shape.rank(action.replica(), Stage{stage}).value : static_cast<int>(rank);
      if (Name{from, to, std::get<0>(key)} == channel) in_channel += sends ? 1 : -1;
      most = std::max(most, in_channel);
    }
    ++at[rank];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < at.size(); ++rank)
      while (rank != lazy && step(rank)) moved = true;
    moved = moved || step(lazy);
  }
  return most;
}

TEST(ChannelDepths, AreReachedByTheSlowestReceiverAndNeverExceeded) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "chimera", "zb-v"})
    for (const int ranks : {2, 4})
      for (const int micro_batches : {4, 8}) {
        const Program program =
            generate(schedule, {.ranks = ranks, .micro_batches = micro_batches});
        const Program training = insert_messages_before_use(program);
        const Program evaluation = insert_messages_before_use(forward_program(program.shape));
        const auto depths = channel_depths(program);
        ASSERT_FALSE(depths.empty());
        for (const ChannelDepth& channel : depths) {
          const Name name{channel.source.value, channel.destination.value, channel.direction};
          EXPECT_EQ(channel.depth, std::max(fullest(training, name), fullest(evaluation, name)))
              << schedule << " p=" << ranks << " m=" << micro_batches << " from "
              << channel.source.value << " to " << channel.destination.value;
        }
      }
}

TEST(ChannelDepths, OfBackwardChannelsOfOneFOneBAreBoundedByTheRanksNotTheMicroBatches) {
  // Rank r+1 can only be ahead of r by what r has sent and not yet backed: p - 1 - r micro-batches.
  for (const ChannelDepth& channel :
       channel_depths(generate("1f1b", {.ranks = 4, .micro_batches = 32})))
    if (channel.direction == Direction::Backward) {
      EXPECT_LE(channel.depth, 4) << channel.source.value;
    }
}

TEST(ChannelDepths, OfAProgramThatDeadlocksAreRefused) {
  Program program = insert_messages_before_use(generate("gpipe", {.ranks = 2, .micro_batches = 1}));
  std::swap(program.ranks[1].front(), program.ranks[1].back());  // sends what it has not got
  std::erase_if(program.ranks[0],
                [](const Action& action) { return action.op == Op::SendForward; });

  EXPECT_THROW((void)channel_depths(program), InvalidArgument);
}

}  // namespace
}  // namespace millrace
