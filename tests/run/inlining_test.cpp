// When the flow graph runs its steps inline, found from made-up times, and that it then does.
#include "scheduler/run/inlining.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "run/toy_pipeline.hpp"

namespace millrace::testing_run {

namespace {

using std::chrono::nanoseconds;

TEST(Inlining, ShortSteps_AreInlined) {
  run::Inlining inlining(nanoseconds(250), 100, 2);
  EXPECT_FALSE(inlining.now()) << "the first step uses all threads";
  inlining.took(nanoseconds(100 * 500));
  EXPECT_FALSE(inlining.now()) << "2 threads busy for 500 ns an action: may be long actions";
  inlining.took(nanoseconds(100 * 499));
  EXPECT_TRUE(inlining.now());
  inlining.took(nanoseconds(100 * 250));
  EXPECT_TRUE(inlining.now());
}

TEST(Inlining, ThatProvedTooLongRestsForAHundredSteps) {
  run::Inlining inlining(nanoseconds(250), 100, 2);
  inlining.took(nanoseconds(1));
  inlining.took(nanoseconds(100 * 250 + 1));
  for (int step = 0; step < 100; ++step) {
    EXPECT_FALSE(inlining.now()) << step;
    inlining.took(nanoseconds(1));
  }
  inlining.took(nanoseconds(1));
  EXPECT_TRUE(inlining.now());
}

TEST(Inlining, NeverHappensBelowALimitOfZero) {
  run::Inlining inlining(nanoseconds(0), 100, 2);
  inlining.took(nanoseconds(0));
  EXPECT_FALSE(inlining.now());
}

TEST(FlowGraphInlining, RunsEveryPassOnTheCallingThread) {
  const Program program = generate("zb-h1", {.ranks = 4, .micro_batches = 8});
  ToyPipeline pipeline(program.shape);
  const auto executor = make_executor(ExecutorKind::FlowGraph,
                                      program,
                                      pipeline.hosted,
                                      {.threads = 4, .inline_below = std::chrono::hours(1)});
  const Outcome first = pipeline.step(*executor);
  std::atomic<int> passes = 0;
  std::atomic<int> elsewhere = 0;
  pipeline.disturb([&, caller = std::this_thread::get_id()](Op, Stage, const PassContext&) {
    ++passes;
    if (std::this_thread::get_id() != caller) ++elsewhere;
  });

  EXPECT_EQ(pipeline.step(*executor), first);

  EXPECT_EQ(passes, 4 * 8 * 3);
  EXPECT_EQ(elsewhere, 0);
}

}  // namespace

}  // namespace millrace::testing_run
