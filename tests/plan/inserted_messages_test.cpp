// The proof that inserted messages cannot hang, held against the proofs of the program that has
// them written out.
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/random_order.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

using ::testing::IsEmpty;

Timeline run_of(const Graph& graph, const Cost& cost) {
  return std::get<Timeline>(simulate(graph, cost));
}

/// What verify finds in the written-out program, transport by transport.
std::vector<Violation> found_when_written(const Program& program) {
  const Program written = insert_messages(program);
  std::vector<Violation> all;
  for (const Transport& transport : {Transport::rendezvous(),
                                     Transport::bounded(1),
                                     Transport::bounded(3),
                                     Transport::unbounded()})
    for (const Violation& violation : verify(written, transport)) all.push_back(violation);
  return all;
}

TEST(InsertedMessages, ScheduleWithoutPairs_IsProven) {
  int proved = 0;
  for (const ScheduleEntry& entry : schedules())
    for (const int p : {1, 2, 3, 4, 6})
      for (const int m : {1, 3, 4, 12}) {
        Program program;
        try {
          program = generate(entry.name, {.ranks = p, .micro_batches = m});
        } catch (const InvalidArgument&) {
          continue;  // the schedule has no program for these counts
        }
        const Graph graph(program);
        const Shape& shape = program.shape;
        for (const Cost& cost : {Cost::unit(shape), Cost::of_full_stage(shape, 3, 2, 4, 1)})
          ASSERT_NE(inserted_messages_cannot_hang(graph, run_of(graph, cost)), graph.has_pairs())
              << program.name;
        if (graph.has_pairs()) continue;
        ASSERT_THAT(found_when_written(program), IsEmpty()) << program.name;
        ++proved;
      }
  EXPECT_GT(proved, 300);
}

TEST(InsertedMessages, OfRandomOrdersAreJudgedAsWhenWritten) {
  const Shape straight{.ranks = 4, .micro_batches = 5, .placement = Placement::straight(4)};
  const Shape vee{.ranks = 3, .micro_batches = 4, .placement = Placement::vee(3)};
  for (const Shape& shape : {straight, vee})
    for (int number = 0; number < 200; ++number) {
      const Cost cost = Cost::of_full_stage(shape, 1 + number % 3, 2, 1, number % 2);
      const Program program = test::RandomOrder(shape, cost, number).draw();
      const Graph graph(program);

      ASSERT_TRUE(inserted_messages_cannot_hang(graph, run_of(graph, cost))) << number;
      ASSERT_THAT(found_when_written(program), IsEmpty()) << number;
    }
}

TEST(InsertedMessages, OrderWithCycle_IsNeverProved) {
  RandomKey key;
  key.seed = 9;
  std::uint32_t draw = 0;
  int cycles = 0, runs = 0;
  for (const ScheduleEntry& entry : schedules()) {
    const Program program = decouple_pairs(generate(entry.name, testing_plan::fitting(entry)));
    const Graph own(program);
    const Timeline run = run_of(own, Cost::unit(program.shape));
    for (int trial = 0; trial < 40; ++trial) {
      Program swapped = program;
      auto& list = swapped.ranks[random_below(key, draw++, 4) % swapped.ranks.size()];
      const auto size = static_cast<std::uint32_t>(list.size());
      const std::uint32_t from = random_below(key, draw++, size);
      std::swap(list[from], list[(from + 1 + random_below(key, draw++, 3)) % size]);
      const Graph graph(swapped);
      const bool proved = inserted_messages_cannot_hang(graph, run);
      if (!verify(graph).empty()) {
        ASSERT_FALSE(proved) << swapped.name << " trial " << trial;
        ++cycles;
      } else {
        ASSERT_TRUE(inserted_messages_cannot_hang(graph, run_of(graph, Cost::unit(swapped.shape))));
        ASSERT_THAT(found_when_written(swapped), IsEmpty()) << swapped.name << " trial " << trial;
        ++runs;
      }
    }
  }
  EXPECT_GT(cycles, 100);
  EXPECT_GT(runs, 100);
}

TEST(InsertedMessages, EarlyOrInstantRun_ProvesNothing) {
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  const Graph graph(program);
  const Timeline run = run_of(graph, Cost::unit(program.shape));
  ASSERT_TRUE(inserted_messages_cannot_hang(graph, run));

  Timeline early = run;  // rank 1 uses what rank 0 has not made
  early.ranks[1][0].start -= 0.5;
  EXPECT_FALSE(inserted_messages_cannot_hang(graph, early));
  Timeline overlapping = run;  // F1 of rank 0 before its F0 has ended
  overlapping.ranks[0][1].start -= 0.5;
  EXPECT_FALSE(inserted_messages_cannot_hang(graph, overlapping));
  Timeline timeless = run;
  timeless.ranks[1][3].end = timeless.ranks[1][3].start;
  EXPECT_FALSE(inserted_messages_cannot_hang(graph, timeless));
  Timeline shorter = run;
  shorter.ranks[1].pop_back();
  EXPECT_THROW(static_cast<void>(inserted_messages_cannot_hang(graph, shorter)), InvalidArgument);
}

TEST(InsertedMessages, WrittenMessages_AreLeftToVerify) {
  const Program compute = generate("1f1b", {.ranks = 3, .micro_batches = 4});
  Program tied = compute;
  tied.shape.ties = {{{{Stage{0}, "first"}, {Stage{2}, "last"}}}};
  for (const Program& program : {insert_messages(compute), insert_reductions(tied)}) {
    const Graph graph(program);
    EXPECT_FALSE(inserted_messages_cannot_hang(graph, run_of(graph, Cost::unit(program.shape))));
  }
}

}  // namespace
}  // namespace millrace
