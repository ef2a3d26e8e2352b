// Optimizers, learning rates and the gradient norm against their equations in double.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/training/gradient_norm.hpp"
#include "millrace/training/learning_rate.hpp"
#include "millrace/training/optimizer.hpp"

namespace millrace {
namespace {

constexpr std::size_t kElements = 37;  // not a multiple of any vector width

std::vector<float> noise(std::uint32_t stream) {
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < kElements; ++i)
    values[i] = static_cast<float>(
        random_uniform({.seed = 3, .layer = stream}, static_cast<std::uint32_t>(i)) - 0.5);
  return values;
}

/// The update equations of optimizer.hpp for one element, in double.
struct Element {
  double w = 0, first = 0, second = 0;

  void move(const OptimizerOptions& options, double gradient, const UpdateSettings& settings) {
    const double lambda = settings.decays ? options.weight_decay : 0;
    const double eta = settings.learning_rate;
    const double t = static_cast<double>(settings.number);
    double g = settings.gradient_factor * gradient;
    if (options.kind == OptimizerKind::AdamW) {
      w -= eta * lambda * w;
    } else {
      g += lambda * w;
    }
    if (options.kind == OptimizerKind::Sgd) {
      w -= eta * g;
    } else if (options.kind == OptimizerKind::Momentum) {
      first = options.momentum * first + g;
      w -= eta * first;
    } else {
      first = options.beta1 * first + (1 - options.beta1) * g;
      second = options.beta2 * second + (1 - options.beta2) * g * g;
      w -= eta * (first / (1 - std::pow(options.beta1, t))) /
           (std::sqrt(second / (1 - std::pow(options.beta2, t))) + options.epsilon);
    }
  }
};

TEST(Optimizer, FollowsItsEquationsOverTwentyUpdates) {
  for (const auto kind :
       {OptimizerKind::Sgd, OptimizerKind::Momentum, OptimizerKind::Adam, OptimizerKind::AdamW})
    for (const bool decays : {true, false}) {
      OptimizerOptions options;
      options.kind = kind;
      options.weight_decay = 0.1;
      const auto optimizer = make_optimizer(options);
      std::vector<float> value = noise(0);
      std::vector<Element> expected(kElements);
      for (std::size_t i = 0; i < kElements; ++i) expected[i].w = static_cast<double>(value[i]);
      std::vector<std::vector<float>> arrays(static_cast<std::size_t>(optimizer->slots()),
                                             std::vector<float>(kElements, 0.0F));
      const std::vector<std::span<float>> state(arrays.begin(), arrays.end());
      for (int t = 1; t <= 20; ++t) {
        const auto gradient = noise(static_cast<std::uint32_t>(t));
        const UpdateSettings settings{
            .number = t, .learning_rate = 0.01, .gradient_factor = 0.7, .decays = decays};
        optimizer->update(settings, value, gradient, state);
        for (std::size_t i = 0; i < kElements; ++i)
          expected[i].move(options, static_cast<double>(gradient[i]), settings);
      }

      for (std::size_t i = 0; i < kElements; ++i)
        EXPECT_NEAR(value[i], expected[i].w, 2e-6) << name_of(kind) << " element " << i;
    }
}

TEST(Optimizer, IsFoundByNameAndRefusesWhatIsOutOfRange) {
  for (const char* name : {"sgd", "momentum", "adam", "adamw"})
    EXPECT_EQ(name_of(optimizer_kind(name)), name);

  EXPECT_THROW((void)optimizer_kind("adma"), InvalidArgument);
  EXPECT_THROW((void)make_optimizer({.beta1 = 1}), InvalidArgument);
  EXPECT_THROW((void)make_optimizer({.momentum = -0.1}), InvalidArgument);
  EXPECT_THROW((void)make_optimizer({.epsilon = 0}), InvalidArgument);
  EXPECT_THROW((void)make_optimizer({.weight_decay = -1}), InvalidArgument);
}

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

TEST(GradientNorm, IsExactForIntegersAtEveryLength) {
  std::vector<float> values;
  double expected = 0;
  for (int n = 0; n < 70; ++n) {
    EXPECT_EQ(sum_of_squares(values), expected) << n;
    values.push_back(static_cast<float>(n - 30));
    expected += double{1} * (n - 30) * (n - 30);
  }
}

/// The order of additions as gradient_norm.hpp writes it down, without regard to speed.
double sum_in_blocks(const std::vector<float>& values) {
  double sum = 0;
  for (std::size_t first = 0; first < values.size(); first += 4096) {
    std::vector<double> lanes(16, 0.0);
    for (std::size_t i = first; i < std::min(first + 4096, values.size()); ++i)
      lanes[(i - first) % 16] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    for (const std::size_t apart : {8U, 4U, 2U, 1U})
      for (std::size_t lane = 0; lane < apart; ++lane) lanes[lane] += lanes[lane + apart];
    sum += lanes[0];
  }
  return sum;
}

TEST(GradientNorm, HasTheBitsOfItsBlocksAddedInOrder) {
  std::vector<float> values(3 * 4096 + 17);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(
        random_uniform({.seed = 5, .layer = 1}, static_cast<std::uint32_t>(i)) - 0.3);
  for (const std::size_t n : {1U, 15U, 4095U, 4096U, 4097U, 8192U, 8200U, 12305U}) {
    const std::vector<float> part(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_EQ(sum_of_squares(part), sum_in_blocks(part)) << n;
  }
  double one_after_the_other = 0;  // another order would show
  for (const float value : values)
    one_after_the_other += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_NE(sum_of_squares(values), one_after_the_other);
}

TEST(GradientNorm, ClipsOnlyAboveTheLimit) {
  const std::vector<double> squares{9, 16};

  EXPECT_EQ(gradient_norm(squares, std::nullopt).norm, 5);
  EXPECT_EQ(gradient_norm(squares, std::nullopt).factor, 1);
  EXPECT_EQ(gradient_norm(squares, 5).factor, 1);
  EXPECT_EQ(gradient_norm(squares, 2).factor, 0.4);
  EXPECT_THROW((void)gradient_norm(squares, 0), InvalidArgument);
}

TEST(GradientNorm, ReportsAnyElementThatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (std::size_t place = 0; place < kElements; ++place) {
      std::vector<float> values = noise(1);
      values[place] = bad;
      const std::vector<double> squares{1.0, sum_of_squares(values)};
      EXPECT_TRUE(gradient_norm(squares, 1).overflow) << place;
    }
  const std::vector<float> huge(4, std::numeric_limits<float>::max());
  const std::vector<double> squares{sum_of_squares(huge)};
  EXPECT_FALSE(gradient_norm(squares, 1).overflow);
}

}  // namespace
}  // namespace millrace
