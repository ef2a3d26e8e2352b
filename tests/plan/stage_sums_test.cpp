// Sums over copies of a pipeline: what they cost a step, what of them runs beside passes, and which
// programs have them.
#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "support/figures.hpp"
#include "support/naive_replay.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_plan::lines;
using testing_plan::NaiveReplay;
using testing_plan::one_f_one_b;
using testing_plan::program;
using testing_plan::straight;

/// F = I = W = 1, sums of `bytes` a stage with one byte per tick.
Cost cost_of_copies(const Shape& shape, int copies, double bytes, double latency = 0) {
  Cost cost = Cost::unit(shape);
  cost.latency = latency;
  cost.data_parallel = copies;
  cost.bytes_per_tick = 1;
  cost.gradient_bytes.assign(static_cast<std::size_t>(shape.stages()), bytes);
  return cost;
}

Report summed_report(const Program& program, const Cost& cost) {
  const Graph graph(program);
  return report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
}

/// Of the catalogue: what has a backward.
std::vector<Program> summed_programs() {
  std::vector<Program> all;
  for (const ScheduleEntry& entry : schedules()) {
    const ScheduleOptions options = testing_plan::fitting(entry);
    Program compute = generate(entry.name, options);
    if (!compute.shape.forward_only) all.push_back(std::move(compute));
  }
  return all;
}

/// Each REDUCE_GRAD right behind the last B or W of its stage; of several replicas, where both have
/// ended theirs.
Program reduced_at_once(Program program) {
  if (program.shape.replicas() > 1) return insert_reductions(program);
  for (auto& list : program.ranks)
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto adds = [&](const Action& other) {
        return gives_weight_gradient(other.op) && other.stage == list[i].stage;
      };
      const auto rest = list.begin() + static_cast<std::ptrdiff_t>(i) + 1;
      if (!gives_weight_gradient(list[i].op) || std::any_of(rest, list.end(), adds)) continue;
      Action reduction;
      reduction.op = Op::ReduceGrad;
      reduction.stage = list[i].stage;
      list.insert(rest, reduction);
    }
  return program;
}

TEST(StageSums, StartAfterLastPass_EndTheStep) {
  const Program two = insert_reductions(one_f_one_b(2, 2), 2);
  EXPECT_THAT(lines(two),
              ElementsAre("0F0 0F1 0B0 0B1 0REDUCE_GRAD", "1F0 1B0 1F1 1B1 1REDUCE_GRAD"));
  const Cost cost = cost_of_copies(two.shape, 2, 4);
  const Graph graph(two);
  const auto run = std::get<Timeline>(simulate(graph, cost));

  // Rank 1 ends its last B at 7, rank 0 at 9; of 4 bytes 2 go and 2 come back.
  EXPECT_EQ(run.ranks[1].back(), (Interval{7, 11}));
  EXPECT_EQ(run.ranks[0].back(), (Interval{9, 13}));
  const auto sums = stage_sums(graph, cost, run);
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_EQ(sums[0].stage, Stage{0});
  EXPECT_EQ(sums[0].time, (Interval{9, 13}));
  EXPECT_EQ(sums[1].ready, 7);
  const Report figures = summed_report(two, cost);
  EXPECT_EQ(figures.makespan, 13);
  EXPECT_EQ(figures.sums.longest, 4);
  EXPECT_EQ(figures.sums.exposed, 4);
  EXPECT_EQ(figures.sums.hidden(), 0);
  EXPECT_EQ(figures.critical_path, 13);
}

TEST(StageSums, TakeTheBytesOfARingAndTwoLatencies) {
  for (const int copies : {1, 2, 3, 4, 8}) {
    const Program one = insert_reductions(one_f_one_b(1, 1), copies);
    const double sum = copies == 1 ? 0 : 24.0 * 2 * (copies - 1) / copies + 2 * 5;
    EXPECT_EQ(summed_report(one, cost_of_copies(one.shape, copies, 24, 5)).makespan, 3 + sum)
        << copies;
  }
}

TEST(StageSums, ShareTheLinkInStartOrder) {
  const Shape shape{1, 1, 1, Placement::loop(1, 2), {}, false};
  const Program both = insert_reductions(program(shape, {"0F0 1F0 1B0 0B0"}), 2);
  EXPECT_THAT(lines(both), ElementsAre("0F0 1F0 1B0 0B0 1REDUCE_GRAD 0REDUCE_GRAD"));
  Cost cost = cost_of_copies(shape, 2, 5, 1);  // with half a stage on each: F is 1 tick
  cost.forward = {1, 1};

  const Graph graph(both);
  const auto run = std::get<Timeline>(simulate(graph, cost));
  const auto sums = stage_sums(graph, cost, run);

  // 1B0 ends at 4, 0B0 at 6; the link is busy from 4 to 9, then with the other until 14.
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_EQ(sums[0].stage, Stage{1});
  EXPECT_EQ(sums[0].time, (Interval{4, 11}));
  EXPECT_EQ(sums[1].time, (Interval{9, 16}));
  EXPECT_EQ(run.ranks[0][4], (Interval{6, 11}));
  EXPECT_EQ(run.ranks[0][5], (Interval{11, 16}));
  // The second stood behind the first, which left when 1B0 had ended.
  EXPECT_THAT(critical_path(graph, cost, run), ElementsAre(0, 1, 2, 5));
  // In units of two ticks.
  EXPECT_EQ(summed_report(both, cost).sums.longest, 7);
  EXPECT_EQ(summed_report(both, cost).sums.exposed, 5);
}

TEST(StageSums, EverySchedule_EqualsNaiveReplay) {
  int exposed = 0, hidden = 0, replicas = 0;
  for (const Program& compute : summed_programs())
    for (const int copies : {2, 4})
      for (const double bytes : {0.0, 2.0, 12.0, 60.0})
        for (const double latency : {0.0, 2.0})
          for (const bool late : {false, true}) {
            Program schedule = late ? insert_reductions(compute, copies) : reduced_at_once(compute);
            if (latency > 0 && late) schedule = insert_messages(schedule);
            Cost cost = cost_of_copies(schedule.shape, copies, bytes, latency);
            cost.gradient_bytes.back() *= 3;
            if (bytes == 12) cost.rank_speed = {1, 0.5, 2, 1};
            const Graph graph(schedule);
            const auto run = std::get<Timeline>(simulate(graph, cost));
            ASSERT_EQ(run.ranks, NaiveReplay(schedule, cost).run())
                << compute.name << ", " << copies << " copies, " << bytes << " bytes, " << late;
            const Report figures = report(graph, cost, run);
            EXPECT_EQ(figures.critical_path, figures.makespan) << compute.name;
            for (const RankReport& rank : figures.ranks)
              EXPECT_DOUBLE_EQ(rank.busy + rank.idle.total(), figures.makespan) << compute.name;
            exposed += figures.sums.exposed > 0 ? 1 : 0;
            hidden += figures.sums.hidden() > 0 ? 1 : 0;
            replicas += compute.shape.replicas() > 1 ? 1 : 0;
          }
  EXPECT_GT(exposed, 100);
  EXPECT_GT(hidden, 100);
  EXPECT_GT(replicas, 50);
}

TEST(StageSums, InsertedReductions_DelayNoPass) {
  for (const Program& compute : summed_programs()) {
    const Program schedule = insert_reductions(compute, 4);
    EXPECT_EQ(insert_reductions(schedule, 4), schedule) << compute.name;
    EXPECT_EQ(compute_only(schedule), compute_only(compute)) << compute.name;
    EXPECT_THAT(verify(schedule), IsEmpty()) << compute.name;
    EXPECT_EQ(schedule.size(),
              compute.size() +
                  static_cast<std::size_t>(compute.shape.stages() * compute.shape.replicas()));
    const Cost cost = cost_of_copies(schedule.shape, 4, 10, 1);
    const auto with = std::get<Timeline>(simulate(Graph(schedule), cost));
    const auto without = std::get<Timeline>(simulate(Graph(compute), cost));
    for (std::size_t r = 0; r < with.ranks.size(); ++r)
      for (std::size_t i = 0; i < without.ranks[r].size(); ++i)
        ASSERT_EQ(with.ranks[r][i], without.ranks[r][i]) << compute.name;
    const Report late = summed_report(schedule, cost),
                 at_once = summed_report(reduced_at_once(compute), cost);
    EXPECT_LE(late.makespan, at_once.makespan) << compute.name;
  }
}

TEST(StageSums, PrecedeTheOptimizerStep) {
  const Program with_step =
      program(straight(2, 1), {"0F0 0B0 0STEP", "1F0 1B0 1REDUCE_GRAD 1STEP"});
  EXPECT_THAT(lines(insert_reductions(with_step, 2)),
              ElementsAre("0F0 0B0 0REDUCE_GRAD 0STEP", "1F0 1B0 1REDUCE_GRAD 1STEP"));
  const Program reduced = insert_reductions(with_step, 2);
  Cost cost = cost_of_copies(reduced.shape, 2, 4);
  cost.optimizer = 2;
  const auto run = std::get<Timeline>(simulate(Graph(reduced), cost));
  EXPECT_EQ(run.ranks[0].back(), (Interval{10, 12}));  // B ends at 6, the sum at 10
}

TEST(StageSums, OfTiedStagesWaitForEachOther) {
  Program tied = one_f_one_b(2, 1);
  tied.shape.ties = {{{{Stage{0}, "first"}, {Stage{1}, "last"}}}};
  const Program schedule = insert_reductions(tied, 2);
  Cost cost = cost_of_copies(schedule.shape, 2, 0, 0);
  cost.gradient_bytes = {1, 20};
  const Graph graph(schedule);
  const auto run = std::get<Timeline>(simulate(graph, cost));
  // 1B0 ends at 4, its sum at 24; 0B0 ends at 6, its own sum at 7.
  EXPECT_EQ(run.ranks[1].back().end, 24);
  EXPECT_EQ(run.ranks[0].back(), (Interval{6, 24}));
  EXPECT_EQ(report(graph, cost, run).critical_path, 24);
}

/// In both directions: stage 0 of the second replica and stage 1 of the first are on rank 1.
TEST(StageSums, Replicas_ExchangeThem) {
  const Shape shape{2, 2, 1, Placement::mirrored(2), {Replica{0}, Replica{1}}, false};
  const Program both =
      insert_reductions(program(shape, {"0F0 1'F1 1'B1 0B0", "0'F1 1F0 1B0 0'B1"}), 2);
  EXPECT_THAT(lines(both),
              ElementsAre("0F0 1'F1 1'B1 0B0 1'REDUCE_GRAD 0REDUCE_GRAD",
                          "0'F1 1F0 1B0 0'B1 1REDUCE_GRAD 0'REDUCE_GRAD"));
  Cost cost = cost_of_copies(shape, 2, 4);
  cost.gradient_bytes = {4, 8};
  const Graph graph(both);
  const auto run = std::get<Timeline>(simulate(graph, cost));
  const auto sums = stage_sums(graph, cost, run);

  // On each rank stage 1 ends its B at 4 and its sum at 12, stage 0 at 6 and, behind that, at 16.
  ASSERT_EQ(sums.size(), 4U);
  EXPECT_EQ(sums[0].stage, Stage{1});
  EXPECT_EQ(sums[0].replica, Replica{1});
  EXPECT_EQ(sums[0].time, (Interval{4, 12}));
  EXPECT_EQ(sums[1].time, (Interval{12, 16}));
  // 8 bytes go to the other rank then; that of stage 0 waits until its rank comes to it.
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_EQ(sums[2 * rank].given, (Interval{12, 20}));
    EXPECT_EQ(sums[2 * rank + 1].given, (Interval{20, 24}));
    EXPECT_EQ(run.ranks[rank][4], (Interval{6, 20}));
    EXPECT_EQ(run.ranks[rank][5], (Interval{20, 24}));
  }
  const Report figures = summed_report(both, cost);
  EXPECT_EQ(figures.makespan, 24);
  EXPECT_EQ(figures.critical_path, 24);
  EXPECT_EQ(figures.sums.longest, 24);
  EXPECT_EQ(figures.sums.exposed, 18);
  cost.link_bytes_per_tick = {1, 2, 4, 1};
  EXPECT_EQ(cost.replica_transfer(Stage{1}, Rank{0}, Rank{1}, 2), 4);
  EXPECT_EQ(cost.replica_transfer(Stage{1}, Rank{1}, Rank{0}, 2), 2);
  EXPECT_EQ(cost.replica_transfer(Stage{1}, Rank{1}, Rank{1}, 2), 0);
}

TEST(StageSums, LengthenOverlappingSteps) {
  for (const Program& compute : summed_programs()) {
    const Program schedule = insert_reductions(compute, 2);
    const Cost cost = cost_of_copies(schedule.shape, 2, 9, 1);
    const Graph graph(schedule);
    const Report figures = summed_report(schedule, cost);
    const auto many = simulate_iterations(graph, cost, 61, Barrier::No);
    EXPECT_NEAR(figures.span, (many.ends[60] - many.ends[0]) / 60, 1e-9) << compute.name;
    const auto one = simulate_iterations(graph, cost, 3, Barrier::Yes);
    EXPECT_NEAR(one.per_step, figures.makespan, 1e-9) << compute.name;
  }
}

TEST(StageSums, WaitTheSameWhereRanksShareProcessors) {
  for (const Program& compute : summed_programs()) {
    const Program schedule = insert_reductions(compute, 2);
    Cost cost = cost_of_copies(schedule.shape, 2, 9, 1);
    cost.cores = 2;
    const Graph graph(schedule);
    const auto run = std::get<Timeline>(simulate(graph, cost));
    Cost alone = cost;
    alone.data_parallel = 1;
    const auto without = std::get<Timeline>(simulate(graph, alone));
    const auto sums = stage_sums(graph, cost, run);
    for (const StageSum& sum : sums) {
      double there = sum.time.end;
      for (const StageSum& other : sums)
        if (other.stage == sum.stage && other.replica != sum.replica)
          there = std::max(there, other.given.end);
      const auto& list = schedule.ranks[sum.rank.index()];
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].op != Op::ReduceGrad || list[i].stage != sum.stage ||
            list[i].replica() != sum.replica)
          continue;
        const auto& times = run.ranks[sum.rank.index()];
        EXPECT_EQ(times[i].end, std::max(times[i - 1].end, there)) << compute.name;
      }
    }
    for (std::size_t r = 0; r < run.ranks.size(); ++r)
      EXPECT_EQ(run.ranks[r].front(), without.ranks[r].front());
  }
}

TEST(StageSums, OfLinksOfTheirOwnTakeTheirTime) {
  const Program two = insert_reductions(one_f_one_b(2, 1), 2);
  Cost cost = cost_of_copies(two.shape, 2, 8);
  cost.link_bytes_per_tick = {2, 1, 1, 4};
  cost.link_latency = {3, 0, 0, 0};
  EXPECT_EQ(cost.sum_transfer(Stage{0}, Rank{0}, 2), 4);
  EXPECT_EQ(cost.sum_transfer(Stage{1}, Rank{1}, 2), 2);
  EXPECT_EQ(cost.sum_delay(Rank{0}, 2), 6);
  EXPECT_EQ(cost.sum_delay(Rank{1}, 2), 0);
}

template <class Call>
std::string sum_refusal(Call call) {
  try {
    call();
  } catch (const InvalidArgument& refused) {
    return refused.what();
  }
  return "nothing was refused";
}

TEST(StageSums, AreRefusedWhereTheyHaveNoMeaning) {
  const Program chimera = generate("chimera", {.ranks = 2, .micro_batches = 4});
  Cost cost = Cost::unit(chimera.shape);
  cost.data_parallel = 0;
  EXPECT_THAT(sum_refusal([&] { cost.require_fits(chimera.shape); }),
              HasSubstr("Cost::data_parallel is 0; a pipeline is trained in 1 copy or more"));
  EXPECT_THAT(sum_refusal([&] { (void)insert_reductions(chimera, 0); }), HasSubstr("got 0"));
  const Program two = one_f_one_b(2, 1);
  Cost wrong = cost_of_copies(two.shape, 2, 1);
  wrong.gradient_bytes = {1};
  EXPECT_THAT(sum_refusal([&] { wrong.require_fits(two.shape); }),
              HasSubstr("Cost::gradient_bytes has 1 values; the shape needs 2"));
  wrong.gradient_bytes = {1, -1};
  EXPECT_THAT(sum_refusal([&] { wrong.require_fits(two.shape); }), HasSubstr("holds -1"));
}

}  // namespace
}  // namespace millrace
