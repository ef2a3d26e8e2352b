// The verifier: one broken rule at a time, with its exact message.
#include "millrace/scheduler/plan/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/passes.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::IsEmpty;
using testing_plan::one_f_one_b;
using testing_plan::program;
using testing_plan::straight;

/// "rule 2, rank 1, position 3: sentence", one line per violation.
std::string text(const std::vector<Violation>& violations) {
  std::string result;
  for (const Violation& each : violations)
    result += (result.empty() ? "" : "\n") + std::string("rule ") +
              std::to_string(static_cast<int>(each.rule)) + ", rank " +
              std::to_string(each.rank.value) + ", position " + std::to_string(each.position) +
              ": " + each.message;
  return result;
}

TEST(Verify, IsSilentAboutOneFOneBWithEveryTransport) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 9; ++m) {
      const Program compute = one_f_one_b(p, m);
      EXPECT_THAT(verify(compute), IsEmpty());
      EXPECT_THAT(verify(split_backward(compute)), IsEmpty());
      EXPECT_THAT(verify(insert_messages(compute), Transport::rendezvous()), IsEmpty());
      EXPECT_THAT(verify(insert_messages_before_use(compute), Transport::bounded(1)), IsEmpty());
    }
}

TEST(Verify, ReportsAMissingAction) {
  EXPECT_EQ(text(verify(program(straight(2, 1), {"0F0 0B0", "1F0"}))),
            "rule 2, rank 1, position 1: 1B0 is missing");
}

TEST(Verify, ReportsAMissingHalf) {
  EXPECT_EQ(text(verify(program(straight(1, 2), {"0F0 0I0 0F1 0I1 0W1"}))),
            "rule 2, rank 0, position 5: 0W0 is missing");
  EXPECT_EQ(text(verify(program(straight(1, 2), {"0F0 0W0 0F1 0I1 0W1"}))),
            "rule 2, rank 0, position 5: 0I0 is missing");
}

TEST(Verify, ReportsARepeatedAction) {
  EXPECT_EQ(text(verify(program(straight(1, 1), {"0F0 0F0 0B0"}))),
            "rule 2, rank 0, position 1: 0F0 appears a second time (first at position 0)");
}

TEST(Verify, ReportsAStageOnTheWrongRank) {
  EXPECT_EQ(text(verify(program(straight(2, 1), {"0F0 0B0 1F0 1B0", ""}))),
            "rule 1, rank 0, position 2: 1F0 is on rank 0; the placement puts its stage on rank 1\n"
            "rule 1, rank 0, position 3: 1B0 is on rank 0; the placement puts its stage on rank 1");
}

TEST(Verify, ReportsWhatLiesOutsideTheShape) {
  EXPECT_EQ(text(verify(program(straight(1, 1), {"0F0 0B0 0F7"}))),
            "rule 2, rank 0, position 2: 0F7 names a micro-batch outside 0");
  EXPECT_EQ(text(verify(program(straight(1, 1), {"0F0 0B0 4F0"}))),
            "rule 1, rank 0, position 2: 4F0 names a stage outside 0");
  EXPECT_EQ(text(verify(Program{straight(2, 1), {{}}, ""})),
            "rule 1, rank 0, position 0: the program has 1 lists; its shape has 2 ranks");
  EXPECT_EQ(text(verify(Program{straight(1, 1000000), {{}}, ""})),
            "rule 2, rank 0, position 0: the shape owes 1000000 forwards; the program has only 0 "
            "actions");
}

TEST(Verify, ReportsWeightBeforeInput) {
  EXPECT_EQ(text(verify(program(straight(1, 1), {"0F0 0W0 0I0"}))),
            "rule 3, rank 0, position 1: 0W0 comes before its 0I0");
}

TEST(Verify, ReportsFullAndSplitBackwardOfOneUnit) {
  EXPECT_EQ(text(verify(program(straight(1, 1), {"0F0 0B0 0W0"}))),
            "rule 3, rank 0, position 2: 0W0 stands beside 0B0; a unit has B, or I and W");
}

TEST(Verify, ReportsBadPairs) {
  EXPECT_EQ(text(verify(program(straight(1, 1), {"0F0+ 0B0"}))),
            "rule 4, rank 0, position 0: 0F0 leads a pair with 0B0 of the same micro-batch, which "
            "depends on it");
  EXPECT_EQ(
      text(verify(program(straight(1, 2), {"0F0 0F1 0R0+ 0B0 0B1"}))),
      "rule 4, rank 0, position 2: 0R0 leads a pair with 0B0; a pair is two of F, B, I and W");
  EXPECT_EQ(text(verify(program(straight(1, 1), {"0F0 0B0+"}))),
            "rule 4, rank 0, position 1: 0B0 leads a pair but is the last action of its rank");
}

TEST(Verify, ReportsBackwardBeforeForward) {
  EXPECT_EQ(text(verify(program(straight(1, 1), {"0B0 0F0"}))),
            "rule 5, rank 0, position 0: 0B0 comes before 0F0, which it needs");
}

TEST(Verify, ReportsACycleBetweenRanks) {
  const Program two = program(straight(2, 2), {"0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"});

  EXPECT_EQ(text(verify(two)),
            "rule 5, rank 0, position 1: the order has a cycle: rank 0 waits in 0B0 for 1B0 of "
            "rank 1; rank 1 waits in 1F1 for 0F1 of rank 0");
}

TEST(Verify, ReportsMessagesThatAreMissingMisplacedOrIdle) {
  const Shape two = straight(2, 1);
  EXPECT_EQ(text(verify(program(two, {"0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"}))),
            "rule 6, rank 0, position 3: 0SEND_F0 is missing");
  EXPECT_EQ(text(verify(program(two, {"0SEND_F0 0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"}))),
            "rule 6, rank 0, position 0: 0SEND_F0 comes before its 0F0");
  EXPECT_EQ(text(verify(program(two, {"0F0 0SEND_F0 0B0 0RECV_B0", "1RECV_F0 1F0 1B0 1SEND_B0"}))),
            "rule 6, rank 0, position 3: 0RECV_B0 comes after its use in 0B0");
  EXPECT_EQ(text(verify(program(straight(1, 1), {"0F0 0SEND_F0 0B0"}))),
            "rule 6, rank 0, position 1: 0SEND_F0 has no partner: the pipeline ends at its stage");
}

TEST(Verify, ReportsTheDeadlockOfARendezvous) {
  const Program late = insert_messages_before_use(one_f_one_b(2, 2));
  EXPECT_THAT(verify(late), IsEmpty());

  EXPECT_EQ(text(verify(late, Transport::rendezvous())),
            "rule 7, rank 0, position 3: with rendezvous the program hangs: rank 0 waits in "
            "0SEND_F1 for rank 1 to get past 1SEND_B0; rank 1 waits in 1SEND_B0 for rank 0 to get "
            "past 0SEND_F1");
}

/// Stage 0 sends two activations before stage 1 takes the first, which needs both gradients first.
Program two_in_flight() {
  return program(straight(2, 2),
                 {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0RECV_B0 0B0",
                  "1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F0 1F0 1B0 1SEND_B0"});
}

TEST(Verify, ReportsTheDeadlockOfASmallCapacity) {
  EXPECT_THAT(verify(two_in_flight(), Transport::bounded(2)), IsEmpty());

  EXPECT_EQ(text(verify(two_in_flight(), Transport::bounded(1))),
            "rule 7, rank 0, position 3: with capacity 1 the program hangs: rank 0 waits in "
            "0SEND_F1 for rank 1 to get past 1RECV_F1; rank 1 waits in 1RECV_F1 for 0SEND_F1 of "
            "rank 0");
}

TEST(Verify, ReportsADeclaredCapacityThatIsTooSmall) {
  Transport transport = Transport::bounded(1);
  transport.channels = {{Rank{0}, Rank{1}, Direction::Forward, 2}};
  EXPECT_THAT(verify(two_in_flight(), transport), IsEmpty());

  transport.channels[0].depth = 1;

  EXPECT_EQ(text(verify(two_in_flight(), transport)),
            "rule 8, rank 0, position 3: the declared room is too small: rank 0 waits in 0SEND_F1 "
            "for rank 1 to get past 1RECV_F1; rank 1 waits in 1RECV_F1 for 0SEND_F1 of rank 0; "
            "the channel of activations from rank 0 to rank 1 has room for 1");
}

TEST(Verify, ReportsAnOvertakingMessageOfAnOrderedTransport) {
  const Transport transport = Transport::fifo();
  EXPECT_THAT(verify(insert_messages(one_f_one_b(3, 4)), transport), IsEmpty());

  EXPECT_EQ(text(verify(two_in_flight(), transport)),
            "rule 6, rank 1, position 0: 1RECV_F1 receives message 0 of rank 0 to rank 1, which is "
            "0SEND_F0; its own, 0SEND_F1, is message 1");
}

TEST(Verify, ReportsMemoryAboveTheLimitAndLeftovers) {
  const Program two = one_f_one_b(2, 2);
  VerifyOptions options;
  options.cost = Cost::unit(two.shape);
  options.memory_limit = {2};
  EXPECT_THAT(verify(two, options), IsEmpty());

  options.memory_limit = {1};
  EXPECT_EQ(text(verify(two, options)),
            "rule 9, rank 0, position 1: memory reaches 2; the limit is 1");
  options.memory_limit = {};
  options.cost->memory_weight = {-1, -0.5};
  EXPECT_EQ(text(verify(two, options)),
            "rule 9, rank 1, position 3: 1 of memory is left after the last action");
}

TEST(Verify, ReportsLossWeights) {
  VerifyOptions options;
  options.loss_weights = {0.25, 0.5};

  EXPECT_EQ(text(verify(one_f_one_b(1, 2), options)),
            "rule 11, rank 0, position 0: the loss weights sum to 0.750000, not 1");
  EXPECT_EQ(text(verify(one_f_one_b(1, 3), options)),
            "rule 11, rank 0, position 0: 2 loss weights for 3 micro-batches");
}

TEST(Verify, ReportsAReductionThatIsMissingOrTooEarly) {
  Program tied = one_f_one_b(2, 1);
  tied.shape.ties = {{{{Stage{0}, "first"}, {Stage{1}, "last"}}}};
  Shape two = tied.shape;

  EXPECT_THAT(verify(insert_reductions(tied)), IsEmpty());
  EXPECT_EQ(text(verify(program(two, {"0F0 0B0 0REDUCE_GRAD", "1F0 1B0"}))),
            "rule 2, rank 1, position 2: 1REDUCE_GRAD is missing");
  EXPECT_EQ(text(verify(program(two, {"0F0 0REDUCE_GRAD 0B0", "1F0 1B0 1REDUCE_GRAD"}))),
            "rule 5, rank 0, position 1: 0REDUCE_GRAD comes before 0B0, which it needs");
  two.ties = {{{{Stage{1}, "first"}, {Stage{1}, "last"}}}};
  EXPECT_EQ(text(verify(program(two, {"0F0 0B0 0REDUCE_GRAD", "1F0 1B0"}))),
            "rule 2, rank 1, position 2: 1REDUCE_GRAD is missing");
  two.ties.front().weights.back().stage = Stage{2};
  EXPECT_THAT(text(verify(program(two, {"0F0 0B0", "1F0 1B0"}))),
              ::testing::HasSubstr("tied weight 'last' of stage 2 names a stage outside 0 to 1"));
}

TEST(Verify, ReportsReductionsThatMeetInDifferentOrders) {
  Shape shape{2, 1, 1, Placement({{Rank{0}, Rank{0}, Rank{1}, Rank{1}}}), {}, false};
  shape.ties = {{{{Stage{0}, "a"}, {Stage{2}, "b"}}}, {{{Stage{1}, "c"}, {Stage{3}, "d"}}}};
  const Program crossed = program(
      shape,
      {"0F0 1F0 1B0 0B0 0REDUCE_GRAD 1REDUCE_GRAD", "2F0 3F0 3B0 2B0 3REDUCE_GRAD 2REDUCE_GRAD"});

  const auto violations = verify(crossed);

  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].rule, Rule::Order);
}

TEST(Accumulation, NamesTheFirstStageThatBreaksTheOrder) {
  EXPECT_TRUE(accumulation(one_f_one_b(4, 6)).ascending);
  const Program lifo = program(straight(2, 2), {"0F0 0F1 0B0 0B1", "1F0 1F1 1B1 1B0"});

  const Accumulation result = accumulation(lifo);

  EXPECT_FALSE(result.ascending);
  EXPECT_EQ(result.broken, Stage{1});
  EXPECT_EQ(result.message, "stage 1 adds the gradient of 1B0 after that of micro-batch 1");
}

TEST(Capacity, OneFOneBNeedsOnePlacePerChannel) {
  const auto capacities = channel_capacities(one_f_one_b(4, 8));

  EXPECT_EQ(capacities.size(), 6U);
  for (const ChannelCapacity& each : capacities) EXPECT_EQ(each.minimal, 1);
}

TEST(Capacity, IsWhatTheProgramHoldsInFlight) {
  const auto capacities = channel_capacities(two_in_flight());

  ASSERT_EQ(capacities.size(), 2U);
  EXPECT_EQ(capacities[0], (ChannelCapacity{Rank{0}, Rank{1}, Direction::Forward, 2, 2}));
  EXPECT_EQ(capacities[1], (ChannelCapacity{Rank{1}, Rank{0}, Direction::Backward, 1, 1}));
}

}  // namespace
}  // namespace millrace
