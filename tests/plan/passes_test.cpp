// Passes on programs small enough to read.
#include "millrace/scheduler/plan/passes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_plan::lines;
using testing_plan::one_f_one_b;
using testing_plan::program;
using testing_plan::straight;

TEST(InsertMessages, BothEnds_AreAtTheSender) {
  EXPECT_THAT(lines(insert_messages(one_f_one_b(2, 2))),
              ElementsAre("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
                          "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1"));
}

TEST(InsertMessages, KeepsPairsTogether) {
  const Program two = program(straight(2, 2), {"0F0 0F1+ 0B0 0B1", "1F0 1B0 1F1 1B1"});

  EXPECT_THAT(lines(insert_messages(two)),
              ElementsAre("0F0 0SEND_F0 0RECV_B0 0F1+ 0B0 0SEND_F1 0RECV_B1 0B1",
                          "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"));
}

TEST(InsertMessages, RefusesAnOrderWithACycle) {
  const Program two = program(straight(2, 2), {"0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"});

  try {
    (void)insert_messages(two);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 waits in 0B0 for 1B0 of rank 1"));
  }
}

TEST(InsertMessagesBeforeUse, ReceivesRightBeforeTheConsumer) {
  EXPECT_THAT(lines(insert_messages_before_use(one_f_one_b(2, 2))),
              ElementsAre("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
                          "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"));
}

TEST(InsertMessages, LeavesNeighboursOnOneRankAlone) {
  const Shape vee{2, 1, 1, Placement::vee(2), {}, false};
  const Program two = program(vee, {"0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"});

  EXPECT_THAT(lines(insert_messages(two)),
              ElementsAre("0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0",
                          "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0"));
}

TEST(SplitBackward, PutsTheWeightHalfAfterAPairThatBLeads) {
  const Program one = program(straight(1, 2), {"0F0 0B0+ 0F1 0B1"});

  EXPECT_THAT(lines(split_backward(one)), ElementsAre("0F0 0I0+ 0F1 0W0 0I1 0W1"));
}

TEST(MergeBackward, UndoesSplitBackward) {
  const Program three = one_f_one_b(3, 5);

  EXPECT_EQ(merge_backward(split_backward(three)), three);
}

TEST(MergeBackward, LeavesADelayedWeightHalfAlone) {
  const Program one = program(straight(1, 2), {"0F0 0F1 0I0 0I1 0W0 0W1"});

  EXPECT_EQ(merge_backward(one), one);
}

TEST(InsertRecompute, ComesBeforeThePairOfTheBackward) {
  const Program one = program(straight(1, 2), {"0F0 0F1+ 0B0 0B1"});

  EXPECT_THAT(lines(insert_recompute(one)), ElementsAre("0F0 0R0 0F1+ 0B0 0R1 0B1"));
}

TEST(InsertRecompute, OfSomeStagesLeavesTheOthersAlone) {
  const Program two = program(straight(2, 2), {"0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"});
  EXPECT_THAT(lines(insert_recompute(two, {false, true})),
              ElementsAre("0F0 0F1 0B0 0B1", "1F0 1R0 1B0 1F1 1R1 1B1"));
  EXPECT_EQ(insert_recompute(two, {false, false}), two);
  EXPECT_THROW((void)insert_recompute(two, {true}), InvalidArgument);
}

TEST(Passes, AreIdempotent) {
  const Program pairs = program(straight(2, 2), {"0F0 0F1+ 0B0 0B1", "1F0 1B0 1F1+ 1B1"});
  for (const Program& start : {one_f_one_b(3, 4), split_backward(one_f_one_b(4, 2))})
    for (const auto pass : {insert_messages,
                            insert_messages_before_use,
                            split_backward,
                            merge_backward,
                            insert_recompute,
                            decouple_pairs,
                            compute_only}) {
      const Program once = pass(start);
      EXPECT_EQ(pass(once), once);
    }
  EXPECT_EQ(decouple_pairs(decouple_pairs(pairs)), decouple_pairs(pairs));
}

TEST(InsertReductions, AddsNothingWhereEveryStageLivesOnce) {
  EXPECT_EQ(insert_reductions(one_f_one_b(3, 4)), one_f_one_b(3, 4));
}

TEST(InsertReductions, CopiesMeetInOneOrderOnBothRanks) {
  // Two replicas, one micro-batch each: stage 1 is done on both ranks before stage 0.
  const Shape mirrored{2, 2, 1, Placement::mirrored(2), {Replica{0}, Replica{1}}, false};
  const Program two = program(mirrored, {"0F0 1'F1 1'B1 0B0", "0'F1 1F0 1B0 0'B1"});

  const Program reduced = insert_reductions(two);

  EXPECT_THAT(lines(reduced),
              ElementsAre("0F0 1'F1 1'B1 1'REDUCE_GRAD 0B0 0REDUCE_GRAD",
                          "0'F1 1F0 1B0 1REDUCE_GRAD 0'B1 0'REDUCE_GRAD"));
  EXPECT_EQ(insert_reductions(reduced), reduced);
  EXPECT_EQ(compute_only(reduced), two);
}

TEST(InsertReductions, TiedStagesReduceTogether) {
  Program three = one_f_one_b(3, 1);
  three.shape.ties = {{{{Stage{0}, "first"}, {Stage{2}, "last"}}}};

  EXPECT_THAT(lines(insert_reductions(three)),
              ElementsAre("0F0 0B0 0REDUCE_GRAD", "1F0 1B0", "2F0 2B0 2REDUCE_GRAD"));

  three.shape.ties = {{{{Stage{1}, "first"}, {Stage{1}, "last"}}}};
  EXPECT_THAT(lines(insert_reductions(three)),
              ElementsAre("0F0 0B0", "1F0 1B0 1REDUCE_GRAD", "2F0 2B0"));
}

TEST(ComputeOnly, UndoesMessagesAndRecompute) {
  const Program three = one_f_one_b(3, 5);

  EXPECT_EQ(compute_only(insert_messages(insert_recompute(three))), three);
}

}  // namespace
}  // namespace millrace
