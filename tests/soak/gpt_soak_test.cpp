// The transformer's matrix in thousands of its cases, and ten thousand steps that leave nothing
// after.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>

#include <gtest/gtest.h>

#include "training/gpt_runs.hpp"
#include "training/steady_memory.hpp"

namespace millrace::testing_training {
namespace {

TEST(GptMatrixSoak, RandomCases_HaveBitsOfPlainLoop) {
  constexpr std::uint64_t kSeed = 15;
  constexpr std::size_t kCases = 3'000;
  std::cout << kCases << " of " << gpt_matrix().cases() << " cases, seed " << kSeed << "\n";
  for (const test::Choice& choice : gpt_matrix().sample(kSeed, kCases)) {
    SCOPED_TRACE(gpt_matrix().text(choice));
    const GptCase of = case_of(choice);
    EXPECT_EQ(run(of), wanted(of));
    if (HasFailure()) return;
  }
}

class SteadyMemorySoak : public testing::TestWithParam<std::string> {};

/// The smallest tensor takes 192 bytes with its margins: one in each of 5,000 steps is 0.9 MiB.
/// What else may come late are pages of blocks that threads need at once only now and then: 12 KiB
/// were seen.
TEST_P(SteadyMemorySoak, DoesNotGrowInTenThousandSteps) {
  EXPECT_LT(expect_steady(GetParam(), 10'000), 768 * 1024);
}

INSTANTIATE_TEST_SUITE_P(Executors,
                         SteadyMemorySoak,
                         testing::Values("sequential", "ranks", "flow-graph"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace millrace::testing_training
