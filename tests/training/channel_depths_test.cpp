// Declared depths: never exceeded by any timing, and reached by the worst one.
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/training/ranks.hpp"
#include "support/test_options.hpp"

namespace millrace {
namespace {

using Name = std::tuple<int, int, Direction>;

/// When a message no longer counts.
enum class Until : bool { Received, UnitEnds };

/// One receiver that moves only when nobody else can, and the messages of one channel to it.
class LazyReceiver {
 public:
  LazyReceiver(const Program& program, Name channel, Until until, std::size_t passes)
      : program_(program),
        channel_(std::move(channel)),
        until_(until),
        passes_(passes),
        at_(program.ranks.size(), 0) {}

  /// The most messages that were in the channel, or kept by its receiver, at once.
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
  /// Replica, receiving stage, micro-batch, slice, pass.
  using Unit = std::tuple<Direction, int, int, int, int, std::size_t>;

  bool step(std::size_t rank) {
    const auto& list = program_.ranks[rank];
    if (at_[rank] == list.size() * passes_) return false;
    const Action& action = list[at_[rank] % list.size()];
    if ((is_send(action.op) || is_receive(action.op)) &&
        !pass(rank, action, at_[rank] / list.size()))
      return false;
    if (until_ == Until::UnitEnds) drop_behind(rank, at_[rank] % list.size());
    ++at_[rank];
    return true;
  }

  static bool same_unit(const Action& a, const Action& b) {
    return a.replica_number == b.replica_number && a.stage == b.stage &&
           a.micro_batch == b.micro_batch && a.slice == b.slice;
  }

  /// What the last pass of a unit has come to use.
  void drop_behind(std::size_t rank, std::size_t at) {
    const auto& list = program_.ranks[rank];
    const auto of_unit = [&](const Action& other) { return same_unit(other, list[at]); };
    if (!is_compute(list[at].op) || static_cast<int>(rank) != std::get<1>(channel_) ||
        std::any_of(list.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                    list.end(),
                    [&](const Action& later) { return is_compute(later.op) && of_unit(later); }))
      return;
    for (const Action& action : list)
      if (is_receive(action.op) && of_unit(action) && channel_of(rank, action) == channel_)
        --in_channel_;
  }

  /// Where a send or receive of `rank` is one end.
  [[nodiscard]] Name channel_of(std::size_t rank, const Action& action) const {
    const bool sends = is_send(action.op);
    const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
    const int other_stage = action.stage.value + (forward == sends ? 1 : -1);
    const int here = static_cast<int>(rank);
    const int other = program_.shape.rank(action.replica(), Stage{other_stage}).value;
    const Direction direction = forward ? Direction::Forward : Direction::Backward;
    return sends ? Name{here, other, direction} : Name{other, here, direction};
  }

  /// Sends or receives; false when there is nothing to receive.
  bool pass(std::size_t rank, const Action& action, std::size_t number) {
    const bool sends = is_send(action.op);
    const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
    const int next = forward ? 1 : -1;
    bool& there = there_[{forward ? Direction::Forward : Direction::Backward,
                          static_cast<int>(action.replica_number),
                          action.stage.value + (sends ? next : 0),
                          action.micro_batch.value,
                          action.slice.value,
                          number}];
    if (!sends && !there) return false;
    there = sends;
    if (channel_of(rank, action) != channel_) return true;
    if (sends) most_ = std::max(most_, ++in_channel_);
    if (!sends && until_ == Until::Received) --in_channel_;
    return true;
  }

  const Program& program_;
  Name channel_;
  Until until_;
  std::size_t passes_;
  std::vector<std::size_t> at_;
  std::map<Unit, bool> there_;
  int in_channel_ = 0, most_ = 0;
};

int fullest(const Program& program,
            const Name& channel,
            Until until = Until::Received,
            std::size_t passes = 1) {
  return LazyReceiver(program, channel, until, passes).fullest();
}

TEST(ChannelDepths, SlowestReceiver_ReachesThem) {
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

TEST(ChannelDepths, IgnoreWhereReceivesArePosted) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-v"}) {
    const Program program = generate(schedule, {.ranks = 4, .micro_batches = 8});
    const auto depths = channel_depths(program), posted = channel_depths(insert_messages(program));
    ASSERT_EQ(posted.size(), depths.size());
    for (std::size_t i = 0; i < depths.size(); ++i)
      EXPECT_EQ(posted[i].depth, depths[i].depth) << schedule;
  }
}

TEST(ChannelDepths, BackwardOf1f1b_BoundedByRanks) {
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
TEST(ChannelDepths, HoldTheMessagesOfAllLinks) {
  const ModelSpec model = parse_model("mlp:8-8-8-8-8-8,residual");
  const Program program = generate("gpipe", {.ranks = 3, .micro_batches = 4});
  TestOptions options;
  options.pipeline.shape.ranks = 3;
  options.pipeline.shape.micro_batches = 4;
  options.pipeline.boundaries = {3, 4};
  const auto by_channel = [](const std::vector<ChannelDepth>& channels) {
    std::map<Name, int> depths;
    for (const ChannelDepth& channel : channels)
      depths[{channel.source.value, channel.destination.value, channel.direction}] = channel.depth;
    return depths;
  };
  options.pipeline.schedule = "gpipe";
  const Trainer trainer(model, options.pipeline, options);
  const auto depths = by_channel(channel_depths(model, {program, {3, 4}}, options));
  EXPECT_EQ(depths, by_channel(channel_depths(trainer.executor().program())));
  EXPECT_TRUE(depths.contains({0, 2, Direction::Forward}));
  EXPECT_FALSE(by_channel(channel_depths(program)).contains({0, 2, Direction::Forward}));
}

/// A layer a stage, all of one width: a tensor a message, all of one size.
TEST(ChannelTensors, AreTheMaximumOfTheSlowestReceiver) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"})
    for (const int ranks : {2, 4})
      for (const std::size_t passes : {1U, 3U}) {
        const Program program = generate(schedule, {.ranks = ranks, .micro_batches = 8});
        const int stages = program.shape.stages();
        std::string widths = "mlp:8";
        for (int stage = 0; stage < stages; ++stage) widths += "-8";
        const ModelSpec model = parse_model(widths);
        TestOptions options;
        options.step.accumulate = static_cast<int>(passes);
        options.fit.batch_size = std::int64_t{16} * options.step.accumulate;
        const Program training = receive_before_use(insert_messages_before_use(program));
        const Program evaluation = insert_messages_before_use(forward_program(program.shape));
        for (const ChannelDepth& channel : channel_depths(model, {program}, options)) {
          const Name name{channel.source.value, channel.destination.value, channel.direction};
          ASSERT_EQ(channel.tensors.size(), 1U);
          EXPECT_EQ(channel.tensors[0].bytes, 2U * 8 * sizeof(float));
          EXPECT_EQ(channel.tensors[0].most,
                    std::max(fullest(training, name, Until::UnitEnds, passes),
                             fullest(evaluation, name, Until::UnitEnds)))
              << schedule << " p=" << ranks << ", " << passes << " passes, from "
              << channel.source.value << " to " << channel.destination.value;
        }
      }
}

TEST(ChannelTensors, HaveSizeOfLargestMicroBatch) {
  ModelSpec model = parse_model("gpt:layers=2,d=16,heads=2,context=8,vocabulary=32");
  const Program program = generate("gpipe", {.ranks = 2, .micro_batches = 2});
  TestOptions options;
  options.pipeline.shape.ranks = options.pipeline.shape.micro_batches = 2;
  options.fit.batch_size = 13;
  const auto of = [&](int copies) {
    const auto depths = channel_depths(model, {program}, options, copies);
    return depths.at(0).tensors.at(0).bytes;
  };
  EXPECT_EQ(of(1), 7U * 8 * 16 * sizeof(float));
  EXPECT_EQ(of(2), 4U * 8 * 16 * sizeof(float));
  model.precision = DType::BF16;
  EXPECT_EQ(of(2), 4U * 8 * 16 * 2);
  model.context = 0;  // whatever comes
  EXPECT_TRUE(channel_depths(model, {program}, options).at(0).tensors.empty());
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
