// zb-auto and zb-v-auto against a second writing of their descriptions, op for op, on random costs,
// memory changes and limits: every filling rule decides some of these cases.
#include <algorithm>

#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/heuristic_oracles.hpp"

namespace millrace {
namespace {

/// Integer times (several coincide, so that ties are decided too), limits from half of p to 3p.
testing_plan::TimedOptions random_case(std::uint64_t number) {
  RandomKey key{.seed = 411, .purpose = Purpose::Test, .step = number};
  std::uint32_t drawn = 0;
  const auto draw = [&](int low, int high) {
    return low +
           static_cast<int>(random_below(key, drawn++, static_cast<std::uint32_t>(high - low + 1)));
  };
  testing_plan::TimedOptions options;
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
    const testing_plan::TimedOptions options = random_case(static_cast<std::uint64_t>(number));
    const std::optional<testing_plan::Orders> expected = oracle(options);
    try {
      const Program program = generate(name, options, options.costs());
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
  EXPECT_GT(agreed("zb-auto", 1500, testing_plan::zb_auto_oracle), 1000);
}

TEST(Heuristics, ZbVAutoIsItsDescriptionOpForOp) {
  EXPECT_GT(agreed("zb-v-auto", 1500, testing_plan::zb_v_auto_oracle), 1000);
}

/// Stages of different times and memory; an I may keep more for W than it frees, and add more while
/// it runs.
Cost unequal_stages(std::uint64_t number, int ranks) {
  RandomKey key{.seed = 412, .purpose = Purpose::Test, .step = number};
  std::uint32_t drawn = 0;
  const auto draw = [&](std::uint32_t sides) {
    return static_cast<double>(random_below(key, drawn++, sides));
  };
  Cost cost;
  for (int rank = 0; rank < ranks; ++rank) {
    cost.forward.push_back(1 + draw(9));
    cost.backward_input.push_back(1 + draw(9));
    cost.backward_weight.push_back(1 + draw(9));
    cost.memory_forward.push_back(4 + draw(9));
    cost.memory_input.push_back(draw(9) - 4);
    cost.memory_input_peak.push_back(draw(15));
    if (number % 3 == 0) cost.memory_forward_peak.push_back(draw(20));
    cost.memory_weight.push_back(-cost.memory_forward.back() - cost.memory_input.back());
  }
  if (draw(3) == 0)
    for (int rank = 0; rank < ranks; ++rank) cost.rank_speed.push_back(1 + draw(2));
  return cost;
}

/// What the most demanding stage needs for one micro-batch.
double least_limit(const Cost& cost) {
  double least = 0;
  for (std::size_t r = 0; r < cost.memory_forward.size(); ++r)
    least = std::max(
        least,
        cost.memory_forward[r] + std::max({0.0, cost.memory_input[r], cost.memory_input_peak[r]}));
  for (const double inside : cost.memory_forward_peak) least = std::max(least, inside);
  return least;
}

// From one micro-batch of the most demanding stage on an order is found, and no rank of it ever
// holds more than the limit under the costs of its own stage.
TEST(Heuristics, ZbAuto_KeepsTheLimitPerStage) {
  for (std::uint64_t number = 0; number < 400; ++number) {
    ScheduleOptions options;
    options.ranks = 1 + static_cast<int>(number % 7);
    options.micro_batches = 1 + static_cast<int>(number % 17);
    const Cost cost = unequal_stages(number, options.ranks);
    const Shape shape{.ranks = options.ranks, .placement = Placement::straight(options.ranks)};
    const Costs costs = costs_of_stages(shape, cost);
    const double least = least_limit(cost);
    for (const double limit : {least, least + 3, 1.5 * least, 3 * least, 40 * least}) {
      options.memory_limit = limit;
      VerifyOptions checks;
      checks.memory_limit = {limit};
      checks.cost = cost;
      const auto faults = verify(generate("zb-auto", options, costs), checks);
      EXPECT_TRUE(faults.empty()) << number << " " << limit << ": " << faults.front().message;
    }
    options.memory_limit = least - 0.5;
    EXPECT_THROW((void)generate("zb-auto", options, costs), InvalidArgument) << number;
  }
}

/// The costs of every stage.
Costs equal_stages(const testing_plan::TimedOptions& options,
                   double forward_peak,
                   double input_peak) {
  Costs costs = options.costs();
  costs.ranks = costs.stages = options.ranks;
  costs.memory_forward_peak = {forward_peak};
  costs.memory_input_peak = {input_peak};
  for (const auto list : {&Costs::forward,
                          &Costs::input,
                          &Costs::weight,
                          &Costs::memory_forward,
                          &Costs::memory_input,
                          &Costs::memory_forward_peak,
                          &Costs::memory_input_peak,
                          &Costs::memory_weight})
    (costs.*list).assign(static_cast<std::size_t>(options.ranks), (costs.*list).front());
  return costs;
}

TEST(Heuristics, KeepTheLimitInsideTheirPasses) {
  int found = 0;
  for (std::uint64_t number = 0; number < 200; ++number) {
    testing_plan::TimedOptions options = random_case(number);
    const double input = static_cast<double>(number % 7) - 4;
    const double input_peak = 4 * static_cast<double>(number % 5);
    const double forward_peak = 5 * static_cast<double>(number % 4);
    options.memory_input = 2 * input;
    options.memory_weight = -8 - options.memory_input;
    const Costs costs = equal_stages(options, forward_peak, input_peak);
    options.memory_limit = options.memory_limit.value_or(12 * options.ranks);
    const double needed =
        8 * options.ranks + std::max({options.memory_input, input_peak, forward_peak - 8});
    for (const std::string name : {"zb-auto", "zb-v-auto", "v-zb"}) try {
        if (name == "zb-v-auto" && *options.memory_limit < needed) continue;  // as its row says
        const Program program = generate(name, options, costs);
        const auto stages = static_cast<std::size_t>(program.shape.stages());
        const double share = 1.0 / program.shape.chunks();
        Cost cost = Cost::unit(program.shape);
        cost.memory_forward.assign(stages, 8 * share);
        cost.memory_input.assign(stages, options.memory_input * share);
        cost.memory_forward_peak.assign(stages, forward_peak * share);
        cost.memory_input_peak.assign(stages, input_peak * share);
        cost.memory_weight.assign(stages, options.memory_weight * share);
        const VerifyOptions checks{.memory_limit = {*options.memory_limit}, .cost = cost};
        const auto faults = verify(program, checks);
        EXPECT_TRUE(faults.empty()) << name << " " << number << ": " << faults.front().message;
        ++found;
      } catch (const InvalidArgument&) {
        continue;  // nothing found under this limit
      }
  }
  EXPECT_GT(found, 300);
}

TEST(Heuristics, TheListSaysTheLeastLimitOfZbAuto) {
  EXPECT_THAT(std::string(find_schedule("zb-auto").needs),
              ::testing::HasSubstr("limit >= mem-f + max(0, mem-i)"));
  for (int p = 1; p <= 6; ++p)
    for (const double input : {-1.0, 0.0, 2.0}) {
      ScheduleOptions options{.ranks = p, .micro_batches = 3 * p};
      const Costs costs{.memory_forward = {3}, .memory_input = {input}};
      options.memory_limit = 3 + std::max(0.0, input);
      const Program program = generate("zb-auto", options, costs);
      Cost cost = Cost::unit(program.shape);
      const auto stages = static_cast<std::size_t>(p);
      cost.memory_forward.assign(stages, 3);
      cost.memory_input.assign(stages, input);
      cost.memory_weight.assign(stages, -3 - input);
      EXPECT_TRUE(verify(program, {.memory_limit = {*options.memory_limit}, .cost = cost}).empty());
      *options.memory_limit -= 0.5;
      EXPECT_THROW((void)generate("zb-auto", options, costs), InvalidArgument);
    }
}

TEST(Heuristics, TightLimit_NamesTheStage) {
  ScheduleOptions options{.ranks = 3, .micro_batches = 4, .memory_limit = 5};
  const Costs costs{
      .memory_forward = {4}, .memory_input = {0, 2, -2}, .memory_weight = {-4, -6, -2}};
  try {
    (void)generate("zb-auto", options, costs);
    FAIL() << "the limit was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "memory_limit is 5; stage 1 holds 6 with one micro-batch, so 6 works");
  }
}

}  // namespace
}  // namespace millrace
