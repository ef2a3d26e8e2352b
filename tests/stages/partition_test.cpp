// Cuts of a model against all cuts there are.
#include "millrace/stages/partition.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"

namespace millrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// (slowest stage, sum of squares, boundaries): what balanced_boundaries minimises, in this order.
using Value = std::tuple<double, double, std::vector<int>>;

Value value_of(const std::vector<double>& seconds, const std::vector<int>& boundaries) {
  Value value{0, 0, boundaries};
  for (std::size_t s = 0; s + 1 < boundaries.size(); ++s) {
    double stage = 0;
    for (int i = boundaries[s]; i < boundaries[s + 1]; ++i)
      stage += seconds[static_cast<std::size_t>(i)];
    std::get<0>(value) = std::max(std::get<0>(value), stage);
    std::get<1>(value) += stage * stage;
  }
  return value;
}

/// Tries every set of inner boundaries, as the bits of a number.
Value best_of_all(const std::vector<double>& seconds, int stages) {
  const int layers = static_cast<int>(seconds.size());
  Value best{std::numeric_limits<double>::infinity(), 0, {}};
  for (unsigned inner = 0; inner < 1U << (layers - 1); ++inner) {
    std::vector<int> boundaries{0};
    for (int i = 1; i < layers; ++i)
      if ((inner >> (i - 1) & 1U) != 0) boundaries.push_back(i);
    boundaries.push_back(layers);
    if (static_cast<int>(boundaries.size()) != stages + 1) continue;
    best = std::min(best, value_of(seconds, boundaries));
  }
  return best;
}

TEST(BalancedBoundaries, AreTheBestOfAllCuts) {
  // Whole numbers of seconds, so that sums are exact and ties are real.
  for (std::uint32_t trial = 0; trial < 60; ++trial) {
    const RandomKey key{.seed = 9, .purpose = Purpose::Test, .sample = trial};
    const std::uint32_t layers = 1 + random_below(key, 0, 10);
    std::vector<double> seconds;
    for (std::uint32_t i = 0; i < layers; ++i) seconds.push_back(random_below(key, i + 1, 6));
    for (int stages = 1; stages <= static_cast<int>(layers); ++stages)
      EXPECT_EQ(value_of(seconds, balanced_boundaries(seconds, stages)),
                best_of_all(seconds, stages))
          << "trial " << trial << ", " << stages << " stages";
  }
}

TEST(BalancedBoundaries, EvenOutWhatTheSlowestStageLeavesOpen) {
  // Any split after the 8 has a slowest stage of 8; 1 1 1 | 1 1 is the most even rest.
  EXPECT_THAT(balanced_boundaries(std::vector<double>{8, 1, 1, 1, 1}, 3), ElementsAre(0, 1, 3, 5));
}

TEST(EvenBoundaries, Sizes_DifferByAtMostOne) {
  for (int layers = 1; layers <= 24; ++layers)
    for (int stages = 1; stages <= layers; ++stages) {
      const auto boundaries = even_boundaries(layers, stages);
      ASSERT_EQ(boundaries.size(), static_cast<std::size_t>(stages) + 1);
      EXPECT_NO_THROW(check_boundaries(boundaries, layers));
      for (std::size_t s = 0; s + 1 < boundaries.size(); ++s)
        EXPECT_EQ((boundaries[s + 1] - boundaries[s] - layers / stages) / 2, 0);
    }
}

TEST(Boundaries, MoreStagesThanLayers_AreRejected) {
  const auto message = ThrowsMessage<InvalidArgument>(
      "cannot cut 3 layers into 4 stages: every stage needs at least one layer");
  EXPECT_THAT([] { (void)even_boundaries(3, 4); }, message);
  EXPECT_THAT([] { (void)balanced_boundaries(std::vector<double>{1, 1, 1}, 4); }, message);
}

TEST(Boundaries, ManualBoundaries_MustAscend) {
  const auto check = [](const std::vector<int>& boundaries) {
    return [boundaries] { check_boundaries(boundaries, 4); };
  };
  EXPECT_NO_THROW(check({0, 1, 4})());
  EXPECT_THAT(check({1, 4}), ThrowsMessage<InvalidArgument>(HasSubstr("got 1")));
  EXPECT_THAT(check({0, 3}), ThrowsMessage<InvalidArgument>(HasSubstr("got 3")));
  EXPECT_THAT(check({0, 2, 2, 4}), ThrowsMessage<InvalidArgument>(HasSubstr("2 follows 2")));
  EXPECT_THROW(check({0})(), InvalidArgument);
}

TEST(BalancedBoundaries, RefuseTimesThatAreNone) {
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double time : {-1.0, infinite, infinite - infinite})
    EXPECT_THROW((void)balanced_boundaries(std::vector<double>{1, time}, 1), InvalidArgument);
}

}  // namespace
}  // namespace millrace::test
