// Optimizers against their equations in double, step by step from the same f32 state.
#include "millrace/training/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"

namespace millrace {
namespace {

// Neither a multiple of any vector width; the second has a whole block and a part of one.
constexpr std::size_t kShort = 37;
constexpr std::size_t kLong = 4096 + 17;

std::vector<float> noise(std::size_t n, std::uint32_t stream) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i)
    values[i] = static_cast<float>(
        random_uniform({.seed = 3, .layer = stream}, static_cast<std::uint32_t>(i)) - 0.5);
  return values;
}

/// A parameter with what an optimizer keeps of it.
struct Moved {
  Moved(const Optimizer& optimizer, std::vector<float> start)
      : value(std::move(start)),
        slots(static_cast<std::size_t>(optimizer.slots()), std::vector<float>(value.size())) {}

  [[nodiscard]] std::vector<std::span<float>> state() { return {slots.begin(), slots.end()}; }

  void move(const Optimizer& optimizer, const UpdateSettings& settings, std::uint32_t stream) {
    std::vector<float> gradient = noise(value.size(), stream);
    apply(optimizer, settings, value, gradient, state());
    EXPECT_EQ(std::ranges::count(gradient, 0.0F), static_cast<std::ptrdiff_t>(gradient.size()));
  }

  std::vector<float> value;
  std::vector<std::vector<float>> slots;
};

using Doubles = std::vector<double>;

double norm(const Doubles& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

double sign(double x) {
  if (x == 0) return 0;
  return x > 0 ? 1 : -1;
}

/// The equations of optimizer.hpp, in double.
class Reference {
 public:
  Reference(const OptimizerOptions& options, const UpdateSettings& settings, const Moved& from)
      : options_(options),
        lambda_(settings.decays ? options.weight_decay : 0),
        eta_(settings.learning_rate),
        t_(static_cast<double>(settings.number)),
        w(from.value.begin(), from.value.end()) {
    for (const auto& slot : from.slots) slots.emplace_back(slot.begin(), slot.end());
  }

  void move(const Doubles& gradient) {
    switch (options_.kind) {
      case OptimizerKind::Sgd:
        for (std::size_t i = 0; i < w.size(); ++i) w[i] -= eta_ * (gradient[i] + lambda_ * w[i]);
        return;
      case OptimizerKind::Momentum:
      case OptimizerKind::Nesterov:
        return move_with_momentum(gradient);
      case OptimizerKind::Adam:
      case OptimizerKind::AdamW:
      case OptimizerKind::Lamb:
        return move_by_moments(gradient);
      case OptimizerKind::Lion:
        for (std::size_t i = 0; i < w.size(); ++i) {
          double& m = slots[0][i];
          const double c = options_.beta1 * m + (1 - options_.beta1) * gradient[i];
          w[i] -= eta_ * (sign(c) + lambda_ * w[i]);
          m = options_.beta2 * m + (1 - options_.beta2) * gradient[i];
        }
    }
  }

 private:
  void move_with_momentum(const Doubles& gradient) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      double& v = slots[0][i];
      const double g = gradient[i] + lambda_ * w[i];
      v = options_.momentum * v + g;
      w[i] -= eta_ * (options_.kind == OptimizerKind::Nesterov ? g + options_.momentum * v : v);
    }
  }

  void move_by_moments(const Doubles& gradient) {
    Doubles r;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double coupled = options_.kind == OptimizerKind::Adam ? lambda_ * w[i] : 0;
      const double g = gradient[i] + coupled;
      double& m = slots[0][i];
      double& u = slots[1][i];
      m = options_.beta1 * m + (1 - options_.beta1) * g;
      u = options_.beta2 * u + (1 - options_.beta2) * g * g;
      r.push_back(m / (1 - std::pow(options_.beta1, t_)) /
                  (std::sqrt(u / (1 - std::pow(options_.beta2, t_))) + options_.epsilon));
      if (options_.kind != OptimizerKind::Adam) r.back() += lambda_ * w[i];
    }
    const bool lamb = options_.kind == OptimizerKind::Lamb && norm(w) > 0 && norm(r) > 0;
    const double trust = lamb ? norm(w) / norm(r) : 1;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= eta_ * trust * r[i];
  }

  OptimizerOptions options_;
  double lambda_, eta_, t_;

 public:
  Doubles w;
  std::vector<Doubles> slots;
};

/// The largest difference is at most 1e-6 of the largest value.
void expect_near(const std::vector<float>& got, const Doubles& wanted, const std::string& what) {
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    difference = std::max(difference, std::abs(static_cast<double>(got[i]) - wanted[i]));
  }
  EXPECT_LE(difference, 1e-6 * largest) << what;
}

OptimizerOptions decaying(OptimizerKind kind) {
  OptimizerOptions options = optimizer_defaults(kind);
  options.weight_decay = 0.1;
  return options;
}

class EachOptimizer : public testing::TestWithParam<OptimizerKind> {};

TEST_P(EachOptimizer, FollowsItsEquationsInEachOfAHundredSteps) {
  const OptimizerOptions options = decaying(GetParam());
  const auto optimizer = make_optimizer(options);
  for (const std::size_t n : {kShort, kLong})
    for (const bool decays : {true, false}) {
      Moved parameter(*optimizer, noise(n, 0));
      for (int t = 1; t <= 100; ++t) {
        const UpdateSettings settings{.number = t,
                                      .learning_rate = 0.01 / (1 + 0.05 * t),
                                      .gradient_factor = t % 3 == 0 ? 0.7 : 1,
                                      .decays = decays};
        Reference expected(options, settings, parameter);
        const auto stream = static_cast<std::uint32_t>(t);
        Doubles gradient;
        for (const float g : noise(n, stream))
          gradient.push_back(settings.gradient_factor * static_cast<double>(g));
        expected.move(gradient);
        parameter.move(*optimizer, settings, stream);

        const std::string where = "step " + std::to_string(t) + " of " + std::to_string(n);
        expect_near(parameter.value, expected.w, "value in " + where);
        for (std::size_t slot = 0; slot < expected.slots.size(); ++slot)
          expect_near(parameter.slots[slot],
                      expected.slots[slot],
                      std::string(optimizer->slot_name(static_cast<int>(slot))) + " in " + where);
      }
    }
}

/// `update` for parts of these lengths, over and over, with the sums of the whole.
void update_in_parts(const Optimizer& optimizer,
                     const UpdateSettings& settings,
                     Moved& parameter,
                     const std::vector<std::size_t>& lengths) {
  const std::vector<float> gradient = noise(parameter.value.size(), 1);
  for (std::size_t first = 0, part = 0; first < gradient.size(); ++part) {
    const std::size_t count = std::min(lengths[part % lengths.size()], gradient.size() - first);
    std::vector<std::span<float>> state;
    for (auto& slot : parameter.slots) state.push_back(std::span(slot).subspan(first, count));
    optimizer.update(settings,
                     std::span(parameter.value).subspan(first, count),
                     std::span(gradient).subspan(first, count),
                     state);
    first += count;
  }
}

TEST_P(EachOptimizer, GivesTheSameBitsHoweverAParameterIsCut) {
  const auto optimizer = make_optimizer(decaying(GetParam()));
  const std::vector<double> sums{3, 7};
  const UpdateSettings settings{
      .number = 2, .learning_rate = 0.1, .gradient_factor = 0.9, .sums = sums};
  Moved whole(*optimizer, noise(kLong, 0));
  for (auto& slot : whole.slots)
    for (float& element : slot) element = 0.25F + 0.5F * whole.value[0];
  Moved cut = whole;
  update_in_parts(*optimizer, settings, whole, {kLong});
  update_in_parts(*optimizer, settings, cut, {1, 5, 64, 333, 17});
  EXPECT_EQ(cut.value, whole.value);
  EXPECT_EQ(cut.slots, whole.slots);
}

TEST_P(EachOptimizer, GroupDecay_ReplacesItsOwn) {
  OptimizerOptions options = decaying(GetParam());
  const auto own = make_optimizer(options);
  options.weight_decay = 0.3;
  const auto other = make_optimizer(options);
  for (const bool decays : {true, false}) {
    Moved expected(*other, noise(kShort, 0));
    Moved grouped(*own, noise(kShort, 0));
    UpdateSettings settings{.learning_rate = 0.1, .decays = decays};
    expected.move(*other, settings, 1);
    settings.weight_decay = 0.3;
    grouped.move(*own, settings, 1);
    EXPECT_EQ(grouped.value, expected.value);
  }
}

TEST_P(EachOptimizer, IsFoundByItsName) {
  EXPECT_EQ(optimizer_kind(name_of(GetParam())), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         EachOptimizer,
                         testing::ValuesIn(optimizer_kinds().begin(), optimizer_kinds().end()),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST(Optimizer, RefusesUnknownNamesAndWhatIsOutOfRange) {
  EXPECT_THROW((void)optimizer_kind("adma"), InvalidArgument);
  EXPECT_THROW((void)make_optimizer({.beta1 = 1}), InvalidArgument);
  EXPECT_THROW((void)make_optimizer({.momentum = -0.1}), InvalidArgument);
  EXPECT_THROW((void)make_optimizer({.epsilon = 0}), InvalidArgument);
  EXPECT_THROW((void)make_optimizer({.weight_decay = -1}), InvalidArgument);
}

TEST(Lamb, StepLength_FollowsTheParametersNorm) {
  const auto optimizer = make_optimizer(optimizer_defaults(OptimizerKind::Lamb));
  Moved parameter(*optimizer, noise(kLong, 0));
  const std::vector<float> before = parameter.value;
  parameter.move(*optimizer, {.learning_rate = 0.125}, 1);
  Doubles step;
  for (std::size_t i = 0; i < kLong; ++i)
    step.push_back(static_cast<double>(parameter.value[i]) - static_cast<double>(before[i]));
  EXPECT_NEAR(norm(step), 0.125 * norm({before.begin(), before.end()}), 1e-5);
}

TEST(Lamb, StepsWithTheLearningRateAloneFromZero) {
  const auto optimizer = make_optimizer(optimizer_defaults(OptimizerKind::Lamb));
  Moved parameter(*optimizer, std::vector<float>(kShort));
  parameter.move(*optimizer, {.learning_rate = 0.125}, 1);
  for (const float w : parameter.value) EXPECT_NEAR(std::abs(w), 0.125F, 1e-3F);
}

/// Wants one sum, the number of elements, and sets every element to it.
class Counting final : public Optimizer {
 public:
  [[nodiscard]] int slots() const override { return 0; }
  [[nodiscard]] std::string_view slot_name(int) const override { return ""; }
  [[nodiscard]] int sums() const override { return 1; }
  void prepare(const UpdateSettings&,
               std::span<const float> value,
               std::span<const float>,
               std::span<const std::span<float>>,
               std::span<double> sums) const override {
    EXPECT_LE(value.size(), kNormBlock);
    sums[0] += static_cast<double>(value.size());
  }
  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float>,
              std::span<const std::span<float>>) const override {
    std::ranges::fill(value, static_cast<float>(settings.sums[0]));
  }
};

TEST(Optimizer, CustomOptimizer_HasSumsOfWholeParameters) {
  const Counting optimizer;
  for (const std::size_t n : {std::size_t{0}, kShort, std::size_t{4096}, 9 * kLong}) {
    Moved parameter(optimizer, std::vector<float>(n));
    parameter.move(optimizer, {}, 1);
    EXPECT_EQ(std::ranges::count(parameter.value, static_cast<float>(n)),
              static_cast<std::ptrdiff_t>(n));
  }
}

}  // namespace
}  // namespace millrace
