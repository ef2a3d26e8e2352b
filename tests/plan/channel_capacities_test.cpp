// The room of channels is read off the compute actions; the messages written out say the same.
#include <string>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace millrace {

namespace {

TEST(ChannelCapacities, AreThoseOfTheMessagesWrittenOut) {
  int compared = 0;
  for (const ScheduleEntry& entry : schedules())
    for (int p = 1; p <= 6; ++p)
      for (const int m : {1, 2, 3, 5, 8, 12}) {
        try {
          const Program program = generate(entry.name, {.ranks = p, .micro_batches = m});
          const Program written = insert_messages_before_use(program);

          ASSERT_EQ(channel_capacities(program), channel_capacities(written))
              << entry.name << " p=" << p << " m=" << m;
          ++compared;
        } catch (const InvalidArgument&) {
          continue;  // the schedule has no program for these counts
        }
      }
  EXPECT_GT(compared, 500);
}

TEST(ChannelCapacities, RefuseAMessageThatNobodyTakes) {
  Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  std::erase_if(program.ranks[1], [](const Action& action) {
    return action.op == Op::Forward && action.micro_batch.value == 1;
  });

  EXPECT_THROW(static_cast<void>(channel_capacities(program)), InvalidArgument);
}

TEST(ChannelCapacities, AreNoneWhereNothingCrossesRanks) {
  EXPECT_TRUE(channel_capacities(generate("1f1b", {.ranks = 1, .micro_batches = 3})).empty());
}

}  // namespace

}  // namespace millrace
