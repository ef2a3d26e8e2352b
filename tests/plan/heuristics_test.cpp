// zb-auto and zb-v-auto against a second writing of their descriptions, op for op, on random costs,
// memory changes and limits: every filling rule decides some of these cases.
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "plan/heuristic_oracles.hpp"

namespace millrace {
namespace {

/// Integer times (several coincide, so that ties are decided too), limits from half of p to 3p.
ScheduleOptions random_case(std::uint64_t number) {
  RandomKey key{.seed = 411, .purpose = Purpose::Test, .step = number};
  std::uint32_t drawn = 0;
  const auto draw = [&](int low, int high) {
    return low +
           static_cast<int>(random_below(key, drawn++, static_cast<std::uint32_t>(high - low + 1)));
  };
  ScheduleOptions options;
  options.ranks = draw(1, 7);
  options.micro_batches = draw(1, 3 * options.ranks + 2);
  options.forward = 2 * draw(1, 9);
  options.input = 2 * draw(1, 9);
  options.weight = 2 * draw(1, 9);
  options.latency = draw(0, 1) * draw(0, 6);
  options.memory_forward = 8;
  options.memory_input = -2 * draw(0, 3);
  options.memory_weight = -8 - options.memory_input;
  if (draw(0, 3) > 0) options.memory_limit = draw(2 * options.ranks, 24 * options.ranks);
  return options;
}

/// Number of cases that found an order; `oracle` and the generator refuse the same ones.
template <class Oracle>
int agreed(const char* name, int cases, Oracle&& oracle) {
  int found = 0;
  for (int number = 0; number < cases; ++number) {
    const ScheduleOptions options = random_case(static_cast<std::uint64_t>(number));
    const std::optional<testing::Orders> expected = oracle(options);
    try {
      const Program program = generate(name, options);
      EXPECT_TRUE(expected.has_value()) << number;
      if (!expected) continue;
      EXPECT_EQ(program.ranks, *expected) << number;
      ++found;
    } catch (const InvalidArgument&) {
      EXPECT_FALSE(expected.has_value()) << number;
    }
    if (::testing::Test::HasFailure()) return found;
  }
  return found;
}

TEST(Heuristics, ZbAutoIsItsDescriptionOpForOp) {
  EXPECT_GT(agreed("zb-auto", 1500, testing::zb_auto_oracle), 1000);
}

TEST(Heuristics, ZbVAutoIsItsDescriptionOpForOp) {
  EXPECT_GT(agreed("zb-v-auto", 1500, testing::zb_v_auto_oracle), 1000);
}

}  // namespace
}  // namespace millrace
