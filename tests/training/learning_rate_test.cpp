// Learning rates against their closed formulas.
#include "millrace/training/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include <gmock/gmock.h>
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

/// A curve as text, and its closed formula behind a warm-up of 10 updates: 100 in all, eta = 3.
struct Curve {
  const char* text;
  std::function<double(double update)> formula;
};

std::vector<Curve> curves() {
  const auto line = [](double from, double to, double share) {
    return from + (to - from) * std::min(share, 1.0);
  };
  return {
      {"constant", [](double) { return 3.0; }},
      {"linear", [=](double u) { return line(3, 0, (u - 10) / 90); }},
      {"linear:floor=0.5", [=](double u) { return line(3, 1.5, (u - 10) / 90); }},
      {"cosine",
       [=](double u) {
         return 1.5 + 1.5 * std::cos(std::numbers::pi * line(0, 1, (u - 10) / 90));
       }},
      {"cosine:floor=0.2",
       [=](double u) {
         return 1.8 + 1.2 * std::cos(std::numbers::pi * line(0, 1, (u - 10) / 90));
       }},
      {"step", [](double u) { return u < 40    ? 3.0
                                     : u < 70  ? 0.3
                                     : u < 100 ? 0.03
                                               : 0.003; }},
      {"step:every=25,factor=0.5",
       [](double u) {
         return u < 35 ? 3.0 : u < 60 ? 1.5 : u < 85 ? 0.75 : 0.375;
       }},
      {"step:every=25,factor=0.5,floor=0.2",
       [](double u) {
         return u < 35 ? 3.0 : u < 60 ? 1.5 : u < 85 ? 0.75 : 0.6;
       }},
      {"inverse-sqrt", [](double u) { return 3 * std::sqrt(10 / (u + 1)); }},
      {"inverse-sqrt:floor=0.5",
       [](double u) { return 3 * std::sqrt(10 / std::min(u + 1, 40.0)); }},
      {"wsd", [=](double u) { return u < 90 ? 3 : line(3, 0, (u - 90) / 10); }},
      {"wsd:decay=40,floor=0.1",
       [=](double u) { return u < 60 ? 3 : line(3, 0.3, (u - 60) / 40); }},
      {"wsd:decay=500", [=](double u) { return line(3, 0, (u - 10) / 90); }},
  };
}

TEST(LearningRate, FollowsItsClosedFormulaBehindTheWarmUp) {
  for (const Curve& curve : curves()) {
    LearningRate rate = parse_learning_rate(curve.text);
    rate.base = 3;
    rate.warm_up = 10;
    rate.total_updates = 100;
    for (int u = 0; u < 10; ++u) EXPECT_DOUBLE_EQ(rate.at(u), 0.3 * (u + 1)) << curve.text;
    for (int u = 10; u < 105; ++u)
      EXPECT_NEAR(rate.at(u), curve.formula(u), 1e-14) << curve.text << " at " << u;
  }
}

TEST(LearningRate, InverseRoot_NeedsNoWarmUp) {
  const LearningRate rate{.kind = LearningRateKind::InverseSquareRoot, .base = 1};
  EXPECT_EQ(rate.at(0), 1);
  EXPECT_EQ(rate.at(3), 0.5);
  EXPECT_EQ(rate.at(99), 0.1);
}

TEST(LearningRate, IsReadFromItsTextAgain) {
  for (const Curve& curve : curves())
    EXPECT_EQ(to_string(parse_learning_rate(curve.text)), curve.text);
  EXPECT_EQ(to_string(LearningRate{.kind = LearningRateKind::Step, .factor = 1.0 / 3}),
            "step:factor=0.3333333333333333");
  EXPECT_EQ(to_string(LearningRate{.function = [](std::int64_t) { return 1.0; }}),
            "one of its own");
}

TEST(LearningRate, RefusesTextsInOneSentence) {
  const auto refusal = [](const char* text) -> std::string {
    try {
      (void)parse_learning_rate(text);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "read";
  };
  EXPECT_EQ(refusal("cosinus"),
            "unknown learning-rate schedule 'cosinus'; known are constant, linear, cosine, step, "
            "inverse-sqrt, wsd");
  EXPECT_EQ(refusal("step:evry=3"),
            "unknown setting 'evry'; the nearest of every, factor, floor is 'every'");
  EXPECT_EQ(refusal("constant:floor=0.1"), "unknown setting 'floor'; there is none here");
  EXPECT_EQ(refusal("step:every=3,every=4"), "setting 'every' is given twice");
  EXPECT_EQ(refusal("step:every=0"), "every 0: must be an integer from 1");
  EXPECT_EQ(refusal("step:every"), "every yes: must be an integer from 1");
  EXPECT_EQ(refusal("wsd:floor=low"), "floor low: must be a number");
  EXPECT_EQ(refusal("wsd:floor=nan"), "floor nan: must be a number");
  EXPECT_THAT(refusal("wsd:floor=2"), testing::HasSubstr("floor must be between 0 and 1"));
  EXPECT_THAT(refusal("step:factor=0"), testing::HasSubstr("factor must be above 0"));
  EXPECT_THAT(refusal("linear:"),
              testing::HasSubstr("has a setting without a name; known are floor"));
}

TEST(LearningRate, FollowsTheMiniBatchSize) {
  EXPECT_EQ(scaled_with_batch(0.1, 1024, 256, BatchScaling::Linear), 0.4);
  EXPECT_EQ(scaled_with_batch(0.1, 1024, 256, BatchScaling::SquareRoot), 0.2);
  EXPECT_EQ(scaled_with_batch(0.1, 64, 256, BatchScaling::Linear), 0.025);
  EXPECT_THROW((void)scaled_with_batch(0.1, 64, 0, BatchScaling::Linear), InvalidArgument);
  EXPECT_EQ(batch_scaling("sqrt"), BatchScaling::SquareRoot);
  EXPECT_EQ(batch_scaling("linear"), BatchScaling::Linear);
  EXPECT_THROW((void)batch_scaling("root"), InvalidArgument);
}

TEST(LearningRate, CustomFunction_AppliesAfterWarmUp) {
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
  for (const auto kind :
       {LearningRateKind::Linear, LearningRateKind::Cosine, LearningRateKind::WarmUpStableDecay}) {
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
  EXPECT_TRUE(LearningRate{.kind = LearningRateKind::Step}.needs_total());
  EXPECT_FALSE((LearningRate{.kind = LearningRateKind::Step, .every = 2}.needs_total()));
  EXPECT_FALSE(LearningRate{.kind = LearningRateKind::InverseSquareRoot}.needs_total());
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
