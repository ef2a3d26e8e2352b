// Ranks that share processors: the clock against a walk through time, and what holds for any
// number of them.
#include <algorithm>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "support/small_programs.hpp"
#include "support/stepped_cores.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using testing_plan::one_f_one_b;
using testing_plan::program;
using testing_plan::SteppedCores;

Timeline timeline(const Graph& graph, const Cost& cost) {
  return std::get<Timeline>(simulate(graph, cost));
}

Report report_of(const Program& program, const Cost& cost) {
  const Graph graph(program);
  return report(graph, cost, timeline(graph, cost));
}

/// Stages that differ, in whole ticks.
Cost uneven(const Shape& shape, double latency) {
  Cost cost = Cost::of_full_stage(shape, 3, 4, 2, 0);
  cost.latency = latency;
  for (std::size_t i = 0; i < cost.forward.size(); ++i) {
    cost.forward[i] += static_cast<double>(i % 3);
    cost.backward_input[i] += static_cast<double>(2 * i % 5);
    cost.backward_weight[i] += static_cast<double>(i % 2);
  }
  return cost;
}

/// Every schedule of the catalogue at a few counts, one half of a pair after the other.
void for_each_program(const std::function<void(const Program&)>& use) {
  int programs = 0;
  for (const ScheduleEntry& entry : schedules())
    for (const int ranks : {2, 3, 4})
      for (const int micro_batches : {1, 3, 8}) {
        try {
          const Program program = decouple_pairs(
              generate(entry.name, {.ranks = ranks, .micro_batches = micro_batches}));
          SCOPED_TRACE(program.name + " p=" + std::to_string(ranks) +
                       " m=" + std::to_string(micro_batches));
          use(program);
          ++programs;
        } catch (const InvalidArgument&) {
          continue;  // the schedule has no program for these counts
        }
      }
  EXPECT_GT(programs, 120);
}

double work_of(const Program& program, const Cost& cost) {
  double work = 0;
  for (const auto& list : program.ranks)
    for (const Action& action : list) work += cost.ticks(action);
  return work;
}

double makespan(const Timeline& timeline) {
  double last = 0;
  for (const auto& list : timeline.ranks)
    for (const Interval& interval : list) last = std::max(last, interval.end);
  return last;
}

void expect_equal(const Report& left, const Report& right) {
  ASSERT_EQ(left.ranks.size(), right.ranks.size());
  EXPECT_THAT((std::vector{left.makespan, left.span, left.span_asap, left.critical_path}),
              ElementsAre(right.makespan, right.span, right.span_asap, right.critical_path));
  for (std::size_t r = 0; r < left.ranks.size(); ++r) {
    EXPECT_EQ(left.ranks[r].busy, right.ranks[r].busy);
    for (const auto idle : {&RankReport::idle, &RankReport::idle_overlapped})
      for (const auto part : {&Idle::warm_up,
                              &Idle::drain,
                              &Idle::transfer,
                              &Idle::imbalance,
                              &Idle::processor,
                              &Idle::dependency})
        EXPECT_EQ(left.ranks[r].*idle.*part, right.ranks[r].*idle.*part);
  }
}

TEST(SharedCores, TwoRanksOnOneCore_Alternate) {
  const Program two = one_f_one_b(2, 2);
  Cost cost = Cost::unit(two.shape);
  cost.cores = 1;

  const Timeline run = timeline(Graph(two), cost);

  // When F0 of rank 0 has ended at 1, F1 of rank 0 and F0 of rank 1 both could begin: rank 0 does.
  // At 5 F1 of rank 1 and B0 of rank 0 likewise.
  EXPECT_THAT(run.ranks[0],
              ElementsAre(Interval{0, 1}, Interval{1, 2}, Interval{5, 7}, Interval{10, 12}));
  EXPECT_THAT(run.ranks[1],
              ElementsAre(Interval{2, 3}, Interval{3, 5}, Interval{7, 8}, Interval{8, 10}));
}

TEST(SharedCores, CoresForAllRanks_ChangeNoBit) {
  for_each_program([](const Program& program) {
    for (const double latency : {0.0, 0.7}) {
      Cost cost = uneven(program.shape, latency);
      const Graph graph(program);
      const Timeline alone = timeline(graph, cost);
      const Report expected = report(graph, cost, alone);
      for (const int more : {0, 1, 1000}) {
        cost.cores = program.shape.ranks + more;
        ASSERT_EQ(timeline(graph, cost), alone);
        expect_equal(report(graph, cost, alone), expected);
      }
    }
  });
}

TEST(SharedCores, AreTimedAsAWalkThroughTimeHasThem) {
  for_each_program([](const Program& program) {
    const Program reduced = insert_reductions(program);
    for (const Program& each :
         {program, reduced, insert_messages(reduced), insert_messages_before_use(reduced)})
      for (const double latency : {0.0, 2.0})
        for (int cores = 1; cores < program.shape.ranks; ++cores) {
          Cost cost = uneven(each.shape, latency);
          cost.cores = cores;
          const Graph graph(each);
          const Timeline run = timeline(graph, cost);
          ASSERT_EQ(SteppedCores(graph, cost).run(static_cast<int>(makespan(run))), run.ranks)
              << cores << " processors, latency " << latency;
        }
  });
}

TEST(SharedCores, OfOneProcessorTheMakespanIsTheWork) {
  for_each_program([](const Program& program) {
    for (const double latency : {0.0, 5.0}) {
      Cost cost = uneven(program.shape, latency);
      cost.cores = 1;
      const double length = makespan(timeline(Graph(program), cost));
      if (latency == 0) {
        ASSERT_EQ(length, work_of(program, cost));
      }
      ASSERT_GE(length, work_of(program, cost));
    }
  });
}

TEST(SharedCores, TheMakespanLiesWithinGrahamsBounds) {
  for_each_program([](const Program& program) {
    Cost cost = uneven(program.shape, 0);
    const double work = work_of(program, cost);
    const double alone = makespan(timeline(Graph(program), cost));
    for (cost.cores = 1; cost.cores < program.shape.ranks; ++cost.cores) {
      const double length = makespan(timeline(Graph(program), cost));
      ASSERT_GE(length, std::max(alone, work / cost.cores));
      ASSERT_LE(length * cost.cores, work + (cost.cores - 1) * alone);
    }
  });
}

TEST(SharedCores, IdleCauses_SumToIdleTime) {
  for_each_program([](const Program& program) {
    for (const double latency : {0.0, 3.0}) {
      Cost cost = uneven(program.shape, latency);
      for (cost.cores = 1; cost.cores < program.shape.ranks; ++cost.cores) {
        const Report all = report_of(program, cost);
        ASSERT_EQ(all.critical_path, all.makespan) << cost.cores << " processors";
        ASSERT_GE(all.span * cost.ticks_per_unit * cost.cores,
                  work_of(program, cost) - 1e-9 * work_of(program, cost));
        for (const RankReport& rank : all.ranks) {
          ASSERT_DOUBLE_EQ(rank.busy + rank.idle.total(), all.makespan);
          ASSERT_NEAR(rank.busy + rank.idle_overlapped.total(), all.span, 1e-9 * all.span);
        }
      }
    }
  });
}

TEST(SharedCores, Span_IsBoundByWorkPerCore) {
  for_each_program([](const Program& program) {
    Cost cost = uneven(program.shape, 0);
    const double free = report_of(program, cost).span * cost.ticks_per_unit;
    for (cost.cores = 1; cost.cores < program.shape.ranks; ++cost.cores)
      ASSERT_NEAR(report_of(program, cost).span * cost.ticks_per_unit,
                  std::max(free, work_of(program, cost) / cost.cores),
                  1e-9 * free)
          << cost.cores << " processors";
  });
}

/// Thirds and the like are not whole: of sums that are equal the bits are not.
TEST(SharedCores, RoundingDoesNotChooseBetweenRanks) {
  for_each_program([](const Program& program) {
    Cost whole = uneven(program.shape, 0);
    const Graph graph(program);
    for (const double speed : {3.0, 0.7, 1.1}) {
      Cost cost = whole;
      cost.rank_speed.assign(static_cast<std::size_t>(program.shape.ranks), speed);
      for (int cores = 1; cores < program.shape.ranks; ++cores) {
        whole.cores = cost.cores = cores;
        const Timeline expected = timeline(graph, whole), run = timeline(graph, cost);
        for (std::size_t r = 0; r < run.ranks.size(); ++r)
          for (std::size_t i = 0; i < run.ranks[r].size(); ++i)
            ASSERT_NEAR(run.ranks[r][i].start * speed, expected.ranks[r][i].start, 1e-6)
                << cores << " processors of speed " << speed;
      }
    }
  });
}

TEST(SharedCores, WaitingForAProcessorIsACauseOfItsOwn) {
  const Program forwards = generate("forward", {.ranks = 2, .micro_batches = 3});
  Cost cost = Cost::unit(forwards.shape);
  cost.cores = 1;

  // 0: F0 F1 .  F2 . .      1: . . F0 . F1 F2
  const Report all = report_of(forwards, cost);

  EXPECT_EQ(all.makespan, 6);
  EXPECT_EQ(all.ranks[0].idle.processor, 1);
  EXPECT_EQ(all.ranks[0].idle.drain, 2);
  EXPECT_EQ(all.ranks[1].idle.warm_up, 2);
  EXPECT_EQ(all.ranks[1].idle.processor, 1);
  EXPECT_EQ(all.span, 6);
}

TEST(SharedCores, AnAtomicPairTakesOneProcessor) {
  const Program pairs = generate("dualpipe", {.ranks = 4, .micro_batches = 8});
  Cost cost = Cost::unit(pairs.shape);
  cost.pair.ticks.fill(3);
  cost.cores = 1;
  double work = 0;
  for (const auto& list : pairs.ranks)
    for (std::size_t i = 0; i < list.size(); ++i) {
      work += list[i].with_next ? 3 : cost.ticks(list[i]);
      if (list[i].with_next) ++i;
    }

  EXPECT_EQ(makespan(timeline(Graph(pairs), cost)), work);
}

TEST(SharedCores, AProgramThatCannotProceedSaysTheSame) {
  Program stuck = one_f_one_b(2, 2);
  std::swap(stuck.ranks[1][0], stuck.ranks[1][1]);
  Cost cost = Cost::unit(stuck.shape);
  const std::string message = std::get<Deadlock>(simulate(Graph(stuck), cost)).message();

  cost.cores = 1;

  EXPECT_EQ(std::get<Deadlock>(simulate(Graph(stuck), cost)).message(), message);
}

TEST(SharedCores, StepsInARowNeedABarrier) {
  const Program schedule = one_f_one_b(4, 8);
  const Graph graph(schedule);
  Cost cost = Cost::unit(schedule.shape);
  cost.cores = 2;

  const Iterations run = simulate_iterations(graph, cost, 3, Barrier::Yes);

  EXPECT_EQ(run.ends.back(), 3 * report_of(schedule, cost).makespan);
  EXPECT_THROW((void)simulate_iterations(graph, cost, 3, Barrier::No), InvalidArgument);
  EXPECT_EQ(simulate_jitter(graph, cost, {0, 2, 1}).mean, report_of(schedule, cost).makespan);
}

TEST(SharedCores, ANegativeNumberIsRefused) {
  const Program schedule = one_f_one_b(2, 2);
  Cost cost = Cost::unit(schedule.shape);
  cost.cores = -1;

  EXPECT_THROW((void)simulate(Graph(schedule), cost), InvalidArgument);
}

}  // namespace
}  // namespace millrace
