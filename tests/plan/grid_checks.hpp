// What holds for every point of the grid, in the unit suite and in the long campaign: the program
// is valid, survives its text forms, is proved under rendezvous and timed as the oracles time it.
#pragma once

#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "support/earliest.hpp"
#include "support/figures.hpp"
#include "support/naive_replay.hpp"

namespace millrace::testing_plan {

/// Above this many actions the replay, which keeps maps, leaves the check to the linear oracle.
inline constexpr std::size_t kReplayed = 2000;

inline void expect_survives_text(const Program& program) {
  const ParsedPlan plan = read_plan(write_plan({program, {}}));
  ASSERT_TRUE(plan.plan) << program.name;
  ASSERT_EQ(plan.plan->program, program) << program.name;
  if (program.shape.replicas() > 1 || program.shape.slices > 1) return;
  if (program.name.starts_with("stp")) return;  // pairs that the CSV has not
  const ParsedProgram table = read_csv(write_csv(program));
  ASSERT_TRUE(table.program) << program.name;
  ASSERT_EQ(table.program->shape, program.shape) << program.name;
  ASSERT_EQ(table.program->ranks, program.ranks) << program.name;
}

inline void expect_timed_as_the_oracles_do(const Program& program, const Program& lowered) {
  const Cost cost = Cost::of_full_stage(program.shape, 5, 4, 3, 1);
  const Graph graph(program);
  const auto result = simulate(graph, cost);
  ASSERT_TRUE(std::holds_alternative<Timeline>(result)) << program.name;
  const auto& timeline = std::get<Timeline>(result);
  ASSERT_EQ(EarliestStarts(program, cost, timeline).fault(), "") << program.name;
  if (program.size() > kReplayed) return;
  ASSERT_EQ(NaiveReplay(program, cost).run(), timeline.ranks) << program.name;
  const auto with_messages = simulate(Graph(lowered), cost);
  ASSERT_TRUE(std::holds_alternative<Timeline>(with_messages)) << program.name;
  ASSERT_EQ(NaiveReplay(lowered, cost).run(), std::get<Timeline>(with_messages).ranks)
      << program.name;
}

/// Number of legal points; a point that a generator refuses must say what works.
inline int checked(const ScheduleEntry& entry, const ScheduleOptions& options) {
  Program program;
  try {
    program = generate(entry.name, options);
  } catch (const InvalidArgument& refusal) {
    EXPECT_NE(std::string(refusal.what()).find("work"), std::string::npos) << refusal.what();
    return 0;
  }
  for (const Violation& violation : verify(program))
    ADD_FAILURE() << program.name << ": " << violation.message;
  expect_survives_text(program);
  const Program compute = decouple_pairs(program);
  const Program lowered = insert_messages(compute);
  for (const Violation& violation : verify(lowered, Transport::rendezvous()))
    ADD_FAILURE() << program.name << " with messages: " << violation.message;
  expect_timed_as_the_oracles_do(compute, lowered);
  return 1;
}

/// `first` to `last` of the grid's ranks, every count of the other options that the entry has.
inline void expect_right_everywhere(const ScheduleEntry& entry, int first, int last) {
  int legal = 0;
  for (const int p : kRanks) {
    if (p < first || p > last) continue;
    for (const int m : telling_micro_batches(p))
      for (int v = 1; v <= (entry.takes("chunks") ? 4 : 1); ++v)
        for (int q = 1; q <= (entry.takes("slices") ? 4 : 1); ++q)
          for (int w = 1; w <= (entry.takes("waves") ? 2 : 1); ++w) {
            ScheduleOptions options = sized(p, m);
            if (entry.takes("chunks")) options.chunks = v;
            if (entry.takes("slices")) options.slices = q;
            if (entry.takes("waves")) options.waves = w;
            legal += checked(entry, options);
          }
  }
  EXPECT_GT(legal, 0) << entry.name;
}

}  // namespace millrace::testing_plan
