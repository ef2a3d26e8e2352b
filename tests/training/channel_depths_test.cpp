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

/// One receiver that moves only when nobody else can, and the messages of one channel to it.
class LazyReceiver {
 public:
  LazyReceiver(const Program& program, Name channel)
      : program_(program), channel_(std::move(channel)), at_(program.ranks.size(), 0) {}

  /// The most messages that were in the channel at once.
  int fullest() {
    const auto lazy = static_cast<std::size_t>(std::get<1>(channel_));
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < at_.size(); ++rank)
        while (rank != lazy && step(rank)) moved = true;
      moved = moved || step(lazy);
    }
    return most_;
  }

 private:
  using Unit = std::tuple<Direction, int, int, int, int>;  // replica, receiving stage, unit, slice

  bool step(std::size_t rank) {
    if (at_[rank] == program_.ranks[rank].size()) return false;
    const Action& action = program_.ranks[rank][at_[rank]];
    if ((is_send(action.op) || is_receive(action.op)) && !pass(rank, action)) return false;
    ++at_[rank];
    return true;
  }

  /// Sends or receives; false when there is nothing to receive.
  bool pass(std::size_t rank, const Action& action) {
    const bool sends = is_send(action.op);
    const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
    const Direction direction = forward ? Direction::Forward : Direction::Backward;
    const int next = forward ? 1 : -1;
    const int stage = action.stage.value + (sends ? next : 0);
    bool& there = there_[{direction,
                          static_cast<int>(action.replica_number),
                          stage,
                          action.micro_batch.value,
                          action.slice.value}];
    if (!sends && !there) return false;
    there = sends;
    const int here = static_cast<int>(rank);
    const int other =
        program_.shape.rank(action.replica(), Stage{sends ? stage : stage - next}).value;
    const Name name = sends ? Name{here, other, direction} : Name{other, here, direction};
    if (name == channel_) most_ = std::max(most_, in_channel_ += sends ? 1 : -1);
    return true;
  }

  const Program& program_;
  Name channel_;
  std::vector<std::size_t> at_;
  std::map<Unit, bool> there_;
  int in_channel_ = 0, most_ = 0;
};

int fullest(const Program& program, const Name& channel) {
  return LazyReceiver(program, channel).fullest();
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

TEST(ChannelDepths, DoNotDependOnWhereTheReceivesArePosted) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-v"}) {
    const Program program = generate(schedule, {.ranks = 4, .micro_batches = 8});
    const auto depths = channel_depths(program), posted = channel_depths(insert_messages(program));
    ASSERT_EQ(posted.size(), depths.size());
    for (std::size_t i = 0; i < depths.size(); ++i)
      EXPECT_EQ(posted[i].depth, depths[i].depth) << schedule;
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

TEST(ChannelDepths, AreAnsweredBetweenNeighboursAndNotAroundARing) {
  for (const ChannelDepth& channel :
       channel_depths(generate("1f1b", {.ranks = 4, .micro_batches = 16})))
    EXPECT_TRUE(channel.answered) << channel.source.value;
  // Rank 0 hears from rank 3 of what rank 1 has taken, long before rank 1 sends it a gradient.
  for (const ChannelDepth& channel :
       channel_depths(generate("interleaved", {.ranks = 4, .micro_batches = 16})))
    EXPECT_FALSE(channel.answered) << channel.source.value;
}

/// What stage 0 gives goes to stage 1 twice over, and past it to stage 2: a message for each link.
TEST(ChannelDepths, OfAModelHoldTheMessagesOfAllItsLinks) {
  const ModelSpec model = parse_model("mlp:8-8-8-8-8-8,residual");
  const Program program = generate("gpipe", {.ranks = 3, .micro_batches = 4});
  TrainerOptions options;
  options.ranks = 3;
  options.micro_batches = 4;
  options.boundaries = {0, 3, 4, model.layer_count()};
  const auto by_channel = [](const std::vector<ChannelDepth>& channels) {
    std::map<Name, int> depths;
    for (const ChannelDepth& channel : channels)
      depths[{channel.source.value, channel.destination.value, channel.direction}] = channel.depth;
    return depths;
  };
  options.schedule = "gpipe";
  const Trainer trainer(model, options);
  const auto depths = by_channel(channel_depths(model, program, options));
  EXPECT_EQ(depths, by_channel(channel_depths(trainer.executor().program())));
  EXPECT_TRUE(depths.contains({0, 2, Direction::Forward}));
  EXPECT_FALSE(by_channel(channel_depths(program)).contains({0, 2, Direction::Forward}));
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
