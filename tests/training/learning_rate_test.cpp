// Learning rates against their closed formulas.
#include "millrace/training/learning_rate.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

TEST(LearningRate, WarmsUpLinearlyThenFollowsItsShape) {
  LearningRate rate{.base = 2, .warm_up = 4, .total_updates = 12};
  for (const auto kind :
       {LearningRateKind::Constant, LearningRateKind::Linear, LearningRateKind::Cosine}) {
    rate.kind = kind;
    EXPECT_EQ(rate.at(0), 0.5);
    EXPECT_EQ(rate.at(3), 2.0);
    EXPECT_EQ(rate.at(4), 2.0);
  }

  // Half of the way from update 4 to update 12.
  rate.kind = LearningRateKind::Constant;
  EXPECT_EQ(rate.at(8), 2.0);
  rate.kind = LearningRateKind::Linear;
  EXPECT_EQ(rate.at(8), 1.0);
  rate.kind = LearningRateKind::Cosine;
  EXPECT_DOUBLE_EQ(rate.at(8), 1.0);
  EXPECT_DOUBLE_EQ(rate.at(6), 1 + std::sqrt(0.5));
  rate.floor = 0.25;
  EXPECT_DOUBLE_EQ(rate.at(12), 0.5);
  EXPECT_DOUBLE_EQ(rate.at(1000), 0.5);
}

TEST(LearningRate, OfYourOwnIsTakenAsItIsBehindItsWarmUp) {
  const LearningRate rate{.warm_up = 4, .function = [](std::int64_t update) {
                            return 1 / (1 + static_cast<double>(update));
                          }};
  EXPECT_EQ(rate.at(0), 0.25);  // 1 / 4 of 1
  EXPECT_EQ(rate.at(1), 0.25);  // 2 / 4 of 1/2
  EXPECT_EQ(rate.at(3), 0.25);
  EXPECT_EQ(rate.at(9), 0.1);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THROW((void)LearningRate{.function = [=](std::int64_t) { return bad; }}.at(0),
                 InvalidArgument);
}

TEST(LearningRate, ThatFallsHasToKnowWhereItEnds) {
  for (const auto kind : {LearningRateKind::Linear, LearningRateKind::Cosine}) {
    LearningRate rate{.kind = kind};
    EXPECT_TRUE(rate.needs_total());
    EXPECT_THROW((void)rate.at(0), InvalidArgument);
    rate.total_updates = 5;
    EXPECT_GT(rate.at(0), 0);
    // Shorter than its warm-up, it is warm-up alone.
    rate.warm_up = 10;
    EXPECT_EQ(rate.at(4), rate.base * 5 / 10);
  }
  EXPECT_FALSE(LearningRate{}.needs_total());
  EXPECT_THROW(LearningRate{.total_updates = -1}.check(), InvalidArgument);
}

TEST(LearningRate, RefusesWhatIsOutOfRange) {
  EXPECT_THROW((void)LearningRate{.base = -1}.at(0), InvalidArgument);
  EXPECT_THROW((void)LearningRate{.warm_up = -1}.at(0), InvalidArgument);
  EXPECT_THROW((void)LearningRate{.floor = 1.5}.at(0), InvalidArgument);
  EXPECT_THROW((void)learning_rate_kind("cosinus"), InvalidArgument);
}

}  // namespace
}  // namespace millrace
