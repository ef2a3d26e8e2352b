// The sweep: every combination is a row, the rows are what simulate says, and neither threads nor
// combinations without meaning disturb their order.
#include "millrace/scheduler/plan/sweep.hpp"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/closed_forms.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<SweepRow> rows_of(const SweepSpace& space, int threads = 1) {
  std::vector<SweepRow> rows;
  sweep(sweep_points(space), threads, [&](const SweepRow& row) { rows.push_back(row); });
  return rows;
}

std::string table_of(const SweepSpace& space, int threads) {
  std::string text;
  sweep(sweep_points(space), threads, [&](const SweepRow& row) { text += sweep_json(row); });
  return text;
}

TEST(Sweep, HasRowPerCombinationInOrder) {
  SweepSpace space;
  space.schedules = {"1f1b", "interleaved"};
  space.ranks = {2, 4};
  space.chunks = {1, 2, 4};
  space.costs = {{.latency = {0}}, {.latency = {1}}};

  std::vector<std::string> seen;
  for (const SweepPoint& point : sweep_points(space))
    seen.push_back(point.schedule + " " + std::to_string(point.ranks) + " " +
                   std::to_string(point.chunks.value_or(0)) + " " +
                   std::to_string(int(point.costs.latency.front())));

  // 1f1b takes no v: one point for all of them.
  EXPECT_EQ(seen.size(), 2U * 2 + 2U * 3 * 2);
  EXPECT_THAT(std::vector(seen.begin(), seen.begin() + 6),
              ElementsAre("1f1b 2 0 0",
                          "1f1b 2 0 1",
                          "1f1b 4 0 0",
                          "1f1b 4 0 1",
                          "interleaved 2 1 0",
                          "interleaved 2 1 1"));
}

TEST(Sweep, AgreesWithTheClosedFormsOfItsPoints) {
  SweepSpace space;
  space.schedules = {"gpipe", "1f1b", "interleaved"};
  space.ranks = {2, 3, 5};
  space.micro_batches = {5, 10, 15};
  space.chunks = {1, 2, 3};
  space.costs = {{.forward = {1.25}, .input = {2}, .weight = {0.5}},
                 {.forward = {3}, .input = {1}, .weight = {1}}};

  for (const SweepRow& row : rows_of(space)) {
    ASSERT_TRUE(row.report) << row.reason;
    const Costs& costs = row.point.costs;
    const double f = costs.forward.front(), i = costs.input.front(), w = costs.weight.front();
    const double work = row.point.micro_batches * (f + i + w);
    const double bubble =
        closed_forms::fused_bubble(row.point.ranks, row.point.chunks.value_or(1), 1, {f, i, w});
    EXPECT_DOUBLE_EQ(row.report->makespan, work + bubble) << sweep_csv(row);
    EXPECT_TRUE(row.valid);
  }
}

TEST(Sweep, AnyThreadCount_SameRows) {
  SweepSpace space;
  for (const ScheduleEntry& entry : schedules()) space.schedules.emplace_back(entry.name);
  space.ranks = {1, 3, 4};
  space.micro_batches = {1, 6, 8};

  const std::string one = table_of(space, 1);

  EXPECT_EQ(table_of(space, 2), one);
  EXPECT_EQ(table_of(space, 7), one);
}

TEST(Sweep, KeepsACombinationWithoutMeaningAsARowWithItsReason) {
  SweepSpace space;
  space.schedules = {"chimera"};
  space.micro_batches = {3, 4};

  const std::vector<SweepRow> rows = rows_of(space);

  ASSERT_EQ(rows.size(), 2U);
  EXPECT_FALSE(rows[0].report);
  EXPECT_THAT(rows[0].reason, HasSubstr("chimera"));
  EXPECT_TRUE(rows[1].report);
  EXPECT_EQ(rows[1].reason, "");
}

TEST(Sweep, SaysWhetherALimitIsKept) {
  SweepSpace space;
  space.schedules = {"gpipe", "1f1b", "zb-auto"};
  space.costs = {{.memory_forward = {3}}};
  space.limits = {std::nullopt, MemoryLimit{{1}, {true}}, MemoryLimit{{3}, {false}}};

  const std::vector<SweepRow> rows = rows_of(space);

  // GPipe holds m = 8, 1F1B p = 4; ZB-auto orders itself by the limit.
  std::vector<bool> valid;
  for (const SweepRow& row : rows) valid.push_back(row.valid);
  EXPECT_THAT(valid, ElementsAre(true, false, false, true, true, false, true, true, true));
  EXPECT_EQ(rows[1].point.memory_limit, 4 * 3);
}

/// p = 2 in four stages, the second of them slow.
Costs four_stages() {
  Costs file;
  file.ranks = 2;
  file.stages = 4;
  file.forward = {1, 3, 1, 1};
  file.input = {1, 1, 1, 2};
  file.weight = {1, 1, 1, 1};
  file.latency = {0.5};
  return file;
}

TEST(Sweep, CostFile_TimesEachStage) {
  SweepSpace space;
  space.schedules = {"1f1b", "interleaved", "zb-v"};
  space.ranks = {2, 3};
  space.micro_batches = {6};
  space.costs = {over(four_stages(), "c.json", {})};

  const std::vector<SweepRow> rows = rows_of(space);

  for (const SweepRow& row : rows) {
    ASSERT_EQ(row.report.has_value(), row.point.ranks == 2) << row.reason;
    EXPECT_THAT(sweep_csv(row), HasSubstr(",c.json,"));
    if (!row.report) {
      EXPECT_THAT(row.reason, HasSubstr("the costs are of p = 2"));
      continue;
    }
    // What simulate says with those costs; the generator hears the mean full stage, F = 6 / 2.
    const Program program =
        generate(row.point.schedule,
                 {.ranks = 2, .micro_batches = 6},
                 {.forward = {3}, .input = {2.5}, .weight = {2}, .latency = {0.5}});
    const Graph graph(program);
    const Cost cost = cost_of(program.shape, four_stages());
    const Report expected = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
    EXPECT_EQ(row.report->makespan, expected.makespan) << row.point.schedule;
    EXPECT_EQ(row.report->span, expected.span);
  }
}

TEST(Sweep, GivesAFileWithoutMemoryThatOfTheCosts) {
  SweepSpace space;
  space.schedules = {"gpipe"};
  space.ranks = {2};
  space.micro_batches = {6};
  space.costs = {over(four_stages(), "c.json", {})};
  space.costs.front().memory_forward = {5};

  EXPECT_EQ(rows_of(space).front().report->largest(&RankReport::peak_bytes), 6 * 5);
}

TEST(Sweep, CountsTheSumsOverCopiesOfThePipeline) {
  SweepSpace space;
  space.schedules = {"interleaved", "chimera"};
  space.data_parallel = {1, 4};
  space.costs = {{.latency = {0.5}, .bandwidth = {2}, .gradient_bytes = {12}}};
  const auto rows = rows_of(space);
  ASSERT_EQ(rows.size(), 4U);
  const Costs costs{.latency = {0.5}, .bandwidth = {2}, .data_parallel = 4, .gradient_bytes = {12}};
  const Program copies = insert_reductions(generate("interleaved", {}, costs), 4);
  const Graph graph(copies);
  const Cost cost = cost_of(copies.shape, costs);
  const Report expected = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
  EXPECT_EQ(rows[1].report->makespan, expected.makespan);
  EXPECT_EQ(rows[1].report->sums.exposed, expected.sums.exposed);
  EXPECT_EQ(rows[0].report->makespan, expected.makespan - expected.sums.exposed);
  ASSERT_TRUE(rows[2].report && rows[3].report);
  // The two replicas of a stage exchange gradients in one copy of the pipeline too.
  EXPECT_GT(rows[2].report->sums.exposed, 0);
  EXPECT_LT(rows[2].report->makespan, rows[3].report->makespan);
}

TEST(Sweep, OverALimit_SaysWhichRankHoldsTooMuch) {
  SweepSpace space;
  space.schedules = {"gpipe"};
  space.limits = {MemoryLimit{{2}}};
  const SweepRow row = rows_of(space).front();

  ASSERT_TRUE(row.report);
  EXPECT_FALSE(row.valid);
  EXPECT_THAT(row.reason, HasSubstr("limit"));
  EXPECT_THAT(sweep_csv(row), HasSubstr("limit"));
}

TEST(Sweep, TakesProgramsWithTheirOwnCounts) {
  SweepSpace space;
  space.schedules = {"mine.plan", "1f1b"};
  space.plans["mine.plan"] =
      std::make_shared<const Program>(generate("zb-h1", {.ranks = 3, .micro_batches = 7}));
  space.ranks = {2, 4};
  space.micro_batches = {5, 6};
  space.costs = {{.latency = {0}}, {.latency = {1}}};
  const auto rows = rows_of(space);

  ASSERT_EQ(rows.size(), 2U + 2 * 2 * 2);
  space.schedules = {"zb-h1"};
  space.plans.clear();
  space.ranks = {3};
  space.micro_batches = {7};
  const auto named = rows_of(space);
  for (const std::size_t i : {0U, 1U}) {
    EXPECT_EQ(rows[i].point.schedule, "mine.plan");
    EXPECT_EQ(rows[i].point.micro_batches, 7);
    EXPECT_EQ(rows[i].report, named[i].report);
  }
}

TEST(Sweep, BeginsWithTheRelistedOrderOfAPublishedOne) {
  SweepSpace space;
  space.schedules = {"v-min", "v-half", "zb-v"};
  space.ranks = {4, 6};
  space.micro_batches = {12};
  space.costs = {{.forward = {2}, .input = {3}, .weight = {1}}};
  const auto rows = rows_of(space);
  ASSERT_EQ(rows.size(), 10U);
  for (std::size_t i = 0; i < 8; i += 2) {
    EXPECT_EQ(rows[i].point.schedule, rows[i + 1].point.schedule + " + relist");
    EXPECT_LT(rows[i].report->makespan, rows[i + 1].report->makespan);
    EXPECT_LE(rows[i].report->largest(&RankReport::peak_bytes),
              rows[i + 1].report->largest(&RankReport::peak_bytes));
    EXPECT_TRUE(rows[i].valid);
  }
  EXPECT_EQ(rows[8].point.schedule, "zb-v");
}

TEST(Sweep, CountsThePassesOfAStep) {
  SweepSpace space;
  space.schedules = {"zb-v"};
  space.data_parallel = {2};
  space.costs.assign(2, {.bandwidth = {1}, .gradient_bytes = {8}});
  space.costs.back().accumulate = 3;
  const auto rows = rows_of(space);
  ASSERT_EQ(rows.size(), 2U);
  const Report &one = *rows[0].report, &three = *rows[1].report;
  EXPECT_GT(one.sums.exposed, 0);
  EXPECT_EQ(one.step, one.makespan);
  EXPECT_EQ(three.makespan, one.makespan);
  EXPECT_EQ(three.step, 3 * one.makespan - 2 * one.sums.exposed);
  EXPECT_FALSE(nlohmann::json::parse(sweep_json(rows[0]))["span"].is_null());
  EXPECT_TRUE(nlohmann::json::parse(sweep_json(rows[1]))["span"].is_null());
  space.costs.back().accumulate = 0;
  EXPECT_THROW((void)sweep_points(space), InvalidArgument);
}

TEST(Sweep, WritesTheSameColumnsAsCsvAndAsJson) {
  SweepSpace space;
  space.schedules = {"chimera"};
  space.micro_batches = {3};
  const SweepRow row = rows_of(space).front();

  const auto json = nlohmann::ordered_json::parse(sweep_json(row));

  std::vector<std::string> names;
  for (const auto& [name, value] : json.items()) names.push_back(name);
  EXPECT_EQ(csv_line(names), sweep_csv_head());
  EXPECT_TRUE(json["makespan"].is_null());
  EXPECT_THAT(sweep_csv(row), StartsWith("chimera,4,3,,,1,1,1,1,1,0,0,0,1,0,-1,,,,,,,,,,,,,"));
  EXPECT_EQ(csv_line({"", "a,b", "say \"x\""}), ",\"a,b\",\"say \"\"x\"\"\"\n");
}

TEST(Sweep, RefusesWhatHasNoPoint) {
  const auto refuses = [](const SweepSpace& space) {
    EXPECT_THROW((void)sweep_points(space), InvalidArgument);
  };
  refuses({});
  refuses({.schedules = {"1f2b"}});
  refuses({.schedules = {"1f1b"}, .ranks = {}});
  refuses({.schedules = {"1f1b"}, .ranks = {4, 0}});
  refuses({.schedules = {"1f1b", "gpipe"}, .chunks = {2}});
  refuses({.schedules = {"1f1b"}, .costs = {}});
  EXPECT_THROW(sweep({}, 0, [](const SweepRow&) {}), InvalidArgument);
}

TEST(Sweep, EndsWithWhatItsReaderThrows) {
  SweepSpace space;
  space.schedules = {"1f1b"};
  space.micro_batches = {1, 2, 3, 4, 5, 6};
  int rows = 0;

  EXPECT_THROW(sweep(sweep_points(space),
                     3,
                     [&](const SweepRow&) {
                       if (++rows == 2) throw std::runtime_error("full");
                     }),
               std::runtime_error);
  EXPECT_EQ(rows, 2);
}

}  // namespace
}  // namespace millrace
