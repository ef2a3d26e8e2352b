// A pass that runs a parallel loop of its own waits for it, and the thread that waits must not be
// given another pass meanwhile.
#include <array>
#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <oneapi/tbb/parallel_for.h>

#include "run/executor_conformance.hpp"

namespace millrace::testing_run {

namespace {

/// Passes of the thread that have begun and not ended.
thread_local int passes_inside = 0;

/// A loop of two halves. A half that another thread has stolen dawdles, so that the owner, done
/// with its own, waits and looks for something to do.
void run_nested_loop() {
  const auto owner = std::this_thread::get_id();
  std::atomic<bool> stolen = false;
  oneapi::tbb::parallel_for(
      oneapi::tbb::blocked_range<int>(0, 8, 1),
      [&](const oneapi::tbb::blocked_range<int>&) {
        if (std::this_thread::get_id() != owner) stolen = true;
        const bool mine = std::this_thread::get_id() == owner;
        for (int i = 0; i < (mine ? 40 : 400) && (!mine || !stolen); ++i) std::this_thread::yield();
      },
      oneapi::tbb::simple_partitioner());
}

TEST(FlowGraph, StartsNoNestedPass) {
  const Program program = generate("zb-h1", {.ranks = 8, .micro_batches = 16});
  ToyPipeline pipeline(program.shape);
  std::atomic<int> passes = 0;
  std::atomic<int> nested = 0;
  pipeline.disturb([&](Op, Stage, const PassContext&) {
    ++passes;
    if (passes_inside > 0) ++nested;
    ++passes_inside;
    run_nested_loop();
    --passes_inside;
  });
  const auto executor = make_executor(ExecutorKind::FlowGraph,
                                      program,
                                      pipeline.hosted,
                                      {.threads = 4, .inline_below = std::chrono::seconds(0)});
  const Outcome first = pipeline.step(*executor);
  const Outcome second = pipeline.step(*executor);

  EXPECT_EQ(first, second);
  EXPECT_EQ(passes, 2 * 8 * 16 * 3);
  EXPECT_EQ(nested, 0) << "of " << passes;
}

TEST(FlowGraph, KeepsRanksApartOnOneThread) {
  const Program program = generate("zb-h1", {.ranks = 16, .micro_batches = 2});
  ToyPipeline pipeline(program.shape);
  const auto executor =
      make_executor(ExecutorKind::FlowGraph, program, pipeline.hosted, {.threads = 4});
  std::atomic<int> nested = 0;
  for (int round = 0; round < 20; ++round)
    executor->for_each_rank([&](Rank) {
      if (passes_inside > 0) ++nested;
      ++passes_inside;
      run_nested_loop();
      --passes_inside;
    });
  EXPECT_EQ(nested, 0);
}

}  // namespace

}  // namespace millrace::testing_run
