// The threads of a rank: every block once, exceptions brought home, and the same bits in every
// executor. Named after the flow graph, because they too are oneTBB's.
#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run/executor_conformance.hpp"
#include "scheduler/run/executors.hpp"

namespace millrace::testing_run {
namespace {

TEST(WorkersFlowGraph, DoEveryBlockOnce) {
  const auto workers = run::make_workers(3);
  for (const std::int64_t blocks : {0, 1, 2, 1000}) {
    std::vector<std::atomic<int>> done(static_cast<std::size_t>(blocks));
    workers->run(blocks, [&](std::int64_t block) { ++done[static_cast<std::size_t>(block)]; });
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(WorkersFlowGraph, ThrowingBlock_LeavesThemUsable) {
  const auto workers = run::make_workers(2);
  EXPECT_THROW(workers->run(100,
                            [](std::int64_t block) {
                              if (block == 57) throw std::out_of_range("block 57");
                            }),
               std::out_of_range);
  std::atomic<int> done = 0;
  workers->run(10, [&](std::int64_t) { ++done; });
  EXPECT_EQ(done, 10);
}

TEST(WorkersFlowGraph, OneThread_HasNone) {
  EXPECT_EQ(run::make_workers(1), nullptr);
  for (const int threads : {0, -1, 1025})
    EXPECT_THROW((void)run::make_workers(threads), InvalidArgument) << threads;
}

TEST(WorkersFlowGraph, ReachThePassesOfEveryExecutor) {
  const Program program = generate("1f1b", {.ranks = 3, .micro_batches = 4});
  for (const ExecutorKind kind : executor_kinds()) {
    ToyPipeline pipeline(program.shape);
    std::atomic<int> blocks = 0;
    pipeline.disturb([&](Op, Stage, const PassContext& context) {
      ASSERT_NE(context.workers, nullptr);
      context.workers->run(5, [&](std::int64_t) { ++blocks; });
    });
    const auto executor = make_executor(kind, program, pipeline.hosted, {.threads_per_rank = 2});
    pipeline.step(*executor);
    EXPECT_EQ(blocks, 3 * 4 * 3 * 5) << name_of(kind);  // F, I and W
  }
}

}  // namespace
}  // namespace millrace::testing_run
