// A thousand steps of a transformer leave nothing behind, also when some of them fail; `./run
// soak` takes ten thousand.
#include "training/steady_memory.hpp"

#include <string>

#include <gtest/gtest.h>

namespace millrace::testing_training {
namespace {

TEST(SteadyMemory, SequentialExecutor_KeepsItsMemory) {
  (void)expect_steady("sequential", 1'000);
}

TEST(SteadyMemory, OfRankThreadsDoesNotGrow) {
  (void)expect_steady("ranks", 1'000);
}

TEST(SteadyMemory, OfTheFlowGraphDoesNotGrow) {
  (void)expect_steady("flow-graph", 1'000);
}

}  // namespace
}  // namespace millrace::testing_training
