// Counter-based random numbers: the published known answers, and independence of the key's fields.
#include "millrace/core/random.hpp"

#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace millrace {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Known-answer vectors that come with Random123 (Salmon et al., SC 2011) for philox4x32-10.
TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(detail::philox({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(detail::philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      detail::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, EveryFieldOfTheKeyChangesTheStream) {
  const RandomKey base{.seed = 1, .purpose = Purpose::Dropout, .step = 2, .sample = 3, .layer = 4};
  std::vector<RandomKey> keys(7, base);
  keys[1].seed = 2;
  keys[2].purpose = Purpose::Shuffle;
  keys[3].step = 3;
  keys[4].sample = 4;
  keys[5].layer = 5;
  keys[6].seed = std::uint64_t{1} << 32U | 1U;

  std::set<Words> blocks;
  for (const RandomKey& key : keys) blocks.insert(random_block(key, 0));

  EXPECT_EQ(blocks.size(), keys.size());
}

TEST(Random, Uniform_HasItsMeanAndVariance) {
  const RandomKey key{.seed = 42};
  constexpr std::uint32_t kDraws = 1U << 16U;
  double sum = 0, squares = 0;
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    const double u = random_uniform(key, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  const double mean = sum / kDraws;
  // Five standard errors: sqrt(1/12 / 65536) = 0.00113.
  EXPECT_NEAR(mean, 0.5, 0.0057);
  EXPECT_NEAR(squares / kDraws - mean * mean, 1.0 / 12, 0.002);
}

TEST(Random, BelowReachesEveryValueAndNothingElse) {
  const RandomKey key{.seed = 7};
  std::set<std::uint32_t> seen;
  for (std::uint32_t i = 0; i < 1000; ++i) seen.insert(random_below(key, i, 10));
  EXPECT_EQ(seen.size(), 10U);
  EXPECT_EQ(*seen.rbegin(), 9U);
}

static_assert(random_word({.seed = 1}, 5) == random_block({.seed = 1}, 1)[1],
              "usable at compile time");

}  // namespace
}  // namespace millrace
