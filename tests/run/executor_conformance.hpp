// The suite that every executor passes. Instances carry the executor's name, so that a filter can
// leave out those that a sanitizer cannot judge (*FlowGraph*).
#pragma once

#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "run/all_ranks.hpp"
#include "run/toy_pipeline.hpp"

namespace millrace::testing_run {

struct ExecutorUnderTest {
  std::string name;
  std::unique_ptr<Executor> (*make)(const Program& program, std::span<const HostedStage> stages);

  friend std::ostream& operator<<(std::ostream& stream, const ExecutorUnderTest& executor) {
    return stream << executor.name;
  }
};

inline std::vector<ExecutorUnderTest> executors_under_test() {
  using Stages = std::span<const HostedStage>;
  return {
      {"Sequential",
       [](const Program& p, Stages s) { return make_executor(ExecutorKind::Sequential, p, s); }},
      {"FlowGraph",
       [](const Program& p, Stages s) {
         return make_executor(
             ExecutorKind::FlowGraph, p, s, {.inline_below = std::chrono::seconds(0)});
       }},
      {"FlowGraphInline",  // from the second step on
       [](const Program& p, Stages s) {
         return make_executor(
             ExecutorKind::FlowGraph, p, s, {.inline_below = std::chrono::hours(1)});
       }},
      {"FlowGraphWithPriorities",
       [](const Program& p, Stages s) {
         return make_executor(
             ExecutorKind::FlowGraph,
             p,
             s,
             {.threads = 3, .priorities = true, .inline_below = std::chrono::seconds(0)});
       }},
      {"Ranks",
       [](const Program& p, Stages s) { return make_executor(ExecutorKind::Ranks, p, s); }},
      {"RankExecutors",
       [](const Program& p, Stages s) -> std::unique_ptr<Executor> {
         return std::make_unique<AllRanks>(p, s);
       }},
  };
}

class ExecutorTest : public testing::TestWithParam<ExecutorUnderTest> {
 protected:
  static std::unique_ptr<Executor> make(const Program& program, ToyPipeline& pipeline) {
    return GetParam().make(program, pipeline.hosted);
  }
};

inline std::string name_of_executor(const testing::TestParamInfo<ExecutorUnderTest>& info) {
  return info.param.name;
}

/// A schedule's program for p ranks and m micro-batches, or nothing where it has no meaning.
inline std::unique_ptr<Program> try_generate(const ScheduleEntry& schedule,
                                             int ranks,
                                             int micro_batches) {
  ScheduleOptions options;
  options.ranks = ranks;
  options.micro_batches = micro_batches;
  if (schedule.takes("slices")) options.slices = 2;
  if (schedule.takes("chunks")) options.chunks = 1;
  try {
    return std::make_unique<Program>(generate(schedule.name, options));
  } catch (const InvalidArgument&) {
    return nullptr;
  }
}

/// Every training schedule at the sizes where it has a meaning: fewer micro-batches than ranks, as
/// many, and more, divisible or not.
template <class Use>
void for_each_schedule(Use&& use) {
  for (const ScheduleEntry& schedule : schedules()) {
    int generated = 0;
    for (const auto& [ranks, micro_batches] :
         {std::pair{1, 2}, {2, 3}, {3, 2}, {2, 6}, {4, 4}, {4, 8}, {4, 10}}) {
      const auto program = try_generate(schedule, ranks, micro_batches);
      if (program == nullptr) continue;
      ++generated;
      if (program->shape.forward_only) continue;
      SCOPED_TRACE(std::string(schedule.name) + ", " + std::to_string(ranks) + " ranks, " +
                   std::to_string(micro_batches) + " micro-batches");
      use(*program);
    }
    EXPECT_GT(generated, 1) << schedule.name;
  }
}

/// Only the forwards of a program.
inline Program forward_only(const Program& program) {
  Program result{program.shape, {}, program.name};
  result.shape.forward_only = true;
  for (const auto& list : program.ranks) {
    auto& forwards = result.ranks.emplace_back();
    for (Action action : list)
      if (action.op == Op::Forward) {
        action.with_next = false;
        forwards.push_back(action);
      }
  }
  return result;
}

}  // namespace millrace::testing_run
