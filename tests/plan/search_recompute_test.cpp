// The search that may recompute: the exact optimum over all choices of stages where everything can
// be tried, never worse than any catalogue entry with any choice, and none where there is room.
#include <algorithm>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "plan/every_order.hpp"
#include "plan/expect_sound.hpp"
#include "plan/search_cases.hpp"

namespace millrace {
namespace {

using test::expect_sound;
using test::SmallCase;

constexpr double kNone = std::numeric_limits<double>::infinity();

/// A small case with times and memory of recompute, every third with I that add memory while they
/// run, every fourth with such F, and a limit that is often below what the fastest order needs.
SmallCase tight_case(int number, int ranks, int micro_batches, Placement placement) {
  SmallCase of = test::small_case(number, ranks, micro_batches, std::move(placement));
  const RandomKey key{
      .seed = 41, .purpose = Purpose::Test, .step = static_cast<std::uint64_t>(number)};
  std::uint32_t drawn = 0;
  for (int stage = 0; stage < of.shape.stages(); ++stage) {
    of.cost.memory_boundary.push_back(random_below(key, drawn++, 4));
    if (number % 2 == 0) of.cost.recompute.push_back(1 + random_below(key, drawn++, 9));
  }
  const int least = 3, most = 4 * of.shape.chunks() * micro_batches;
  of.memory_limit = least + random_below(key, drawn++, static_cast<std::uint32_t>(most - least));
  if (number % 3 == 1)
    for (double& passing : of.cost.memory_input_peak) passing = random_below(key, drawn++, 7);
  for (int stage = 0; number % 4 == 1 && stage < of.shape.stages(); ++stage)
    of.cost.memory_forward_peak.push_back(2 + random_below(key, drawn++, 7));
  return of;
}

std::vector<SmallCase> tiny_cases() {
  std::vector<SmallCase> cases;
  const auto add = [&](int ranks, int micro_batches, const Placement& placement) {
    cases.push_back(
        tight_case(5000 + static_cast<int>(cases.size()), ranks, micro_batches, placement));
  };
  for (int draw = 0; draw < 26; ++draw) {
    add(2, 2, Placement::straight(2));
    add(2, 1, Placement::vee(2));
    add(1, 3, Placement::straight(1));
  }
  for (int draw = 0; draw < 12; ++draw) add(3, 2, Placement::straight(3));
  return cases;
}

/// All choices for so many stages, by the bits of a number.
std::vector<std::vector<bool>> every_choice(int stages) {
  std::vector<std::vector<bool>> choices;
  for (unsigned number = 0; number < 1U << stages; ++number) {
    choices.emplace_back();
    for (int s = 0; s < stages; ++s) choices.back().push_back((number >> s & 1U) != 0);
  }
  return choices;
}

TEST(ExactRecompute, EqualsBruteForceForEveryChoice) {
  int fitting = 0;
  for (SmallCase of : tiny_cases())
    for (const auto& choice : every_choice(of.shape.stages())) {
      of.recompute = choice;
      const double best = test::brute_force(of);
      const ExactResult result = solve_exact(of.shape,
                                             of.cost,
                                             {.objective = of.objective,
                                              .memory_limit = of.memory_limit,
                                              .fused = of.fused,
                                              .recompute = choice});
      ASSERT_TRUE(result.proven);
      ASSERT_EQ(result.value, best) << recompute_text(choice);
      if (best == kNone) continue;
      ++fitting;
      EXPECT_EQ(recomputed_stages(*result.program), choice);
      ASSERT_LE(lower_bound(of.shape, of.cost, of.objective, of.memory_limit, {}, choice), best);
    }
  EXPECT_GT(fitting, 100);
}

SearchOptions asked(const SmallCase& of, std::int64_t budget) {
  SearchOptions options = test::search_options(of, budget);
  options.placement = of.shape.placement;
  options.recompute = true;
  return options;
}

TEST(SearchRecompute, LiesBetweenOptimaByStageAndMicroBatch) {
  int found_only_so = 0, faster = 0, without = 0, finer = 0, missed = 0;
  for (SmallCase of : tiny_cases()) {
    if (of.fused) continue;  // the search may split what the case keeps whole
    double best = kNone;
    for (const auto& choice : every_choice(of.shape.stages())) {
      of.recompute = choice;
      best = std::min(best, test::brute_force(of));
    }
    SearchOptions options = asked(of, 200);
    const SearchResult result = search(options);
    options.recompute = false;
    const SearchResult plain = search(options);
    ASSERT_EQ(result.best.has_value(), best < kNone);
    if (!result.best) continue;
    const double value = result.best->value(of.objective);
    EXPECT_LE(value, best);
    if (of.shape.ranks < 3) {
      of.any_recompute = true;
      const double any = test::brute_force(of);
      EXPECT_GE(value, any);
      EXPECT_LE(result.lower_bound, any);
      finer += value < best ? 1 : 0;
      missed += value > any ? 1 : 0;
    }
    if (result.proven) {
      EXPECT_EQ(value, result.lower_bound);
    }
    for (const FoundSchedule& found : result.front) expect_sound(asked(of, 0), found);
    if (!plain.best) {
      ++found_only_so;
    } else if (plain.best->value(of.objective) > value) {
      ++faster;
    } else {
      ++without;
      EXPECT_EQ(recompute_text(result.best->recomputed), "none");
    }
  }
  EXPECT_GT(found_only_so, 3);
  EXPECT_GT(faster, 3);
  EXPECT_GT(without, 3);
  EXPECT_GT(finer, 1);
  EXPECT_EQ(missed, 0);
}

/// Stages of a model whose first is the largest, with recompute that is cheaper than F.
Cost uneven(const Shape& shape) {
  Cost cost = Cost::of_full_stage(shape, 8, 9, 7, 1);
  for (std::size_t s = 0; s < cost.memory_forward.size(); ++s) {
    const double share = s == 0 ? 1.5 : 1;
    for (auto* times : {&cost.forward, &cost.backward_input}) (*times)[s] *= share;
    for (auto* memory : {&cost.memory_forward, &cost.memory_weight}) (*memory)[s] *= share;
    cost.memory_boundary.push_back(0.125);
    cost.recompute.push_back(cost.forward[s] * 0.75);
  }
  return cost;
}

/// The same, and passes that add more while they run than they leave.
Cost peaked(const Shape& shape) {
  Cost cost = uneven(shape);
  for (std::size_t s = 0; s < cost.memory_forward.size(); ++s) {
    cost.memory_forward_peak.push_back(cost.memory_forward[s] * 1.25);
    cost.memory_input_peak[s] = 0.25;
  }
  return cost;
}

class SearchRecomputeOf : public ::testing::TestWithParam<Cost (*)(const Shape&)> {};

TEST_P(SearchRecomputeOf, Catalogue_IsNotBetter) {
  const auto costs = GetParam();
  for (const double limit : {2.0, 2.5, 3.5}) {
    SearchOptions options{
        .ranks = 3, .micro_batches = 9, .memory_limit = limit, .cost = costs, .budget = 0};
    options.recompute = true;
    const SearchResult result = search(options);
    ASSERT_TRUE(result.best.has_value()) << limit;
    expect_sound(options, *result.best);
    int compared = 0;
    for (const ScheduleEntry& entry : schedules()) {
      if (entry.takes("slices") || entry.name == "forward") continue;
      ScheduleOptions counts{.ranks = 3, .micro_batches = 9};
      if (entry.takes("memory_limit")) counts.memory_limit = 3;
      Program program;
      try {
        program = decouple_pairs(generate(entry.name, counts));
      } catch (const InvalidArgument&) {
        continue;  // this schedule has no program for these counts
      }
      for (const auto& choice : every_choice(program.shape.stages())) {
        const Program chosen = insert_recompute(program, choice);
        const Cost cost = costs(program.shape);
        if (test::most_held(chosen, cost) > limit) continue;
        ++compared;
        ASSERT_LE(result.best->makespan,
                  test::simulated(chosen, cost, Objective::Makespan) * (1 + 1e-12))
            << entry.name << " " << recompute_text(choice);
      }
    }
    EXPECT_GT(compared, 4) << limit;
  }
}

INSTANTIATE_TEST_SUITE_P(OfUnevenStages,
                         SearchRecomputeOf,
                         ::testing::Values(uneven, peaked),
                         [](const auto& costs) { return costs.index == 0 ? "Plain" : "Peaked"; });

TEST(SearchRecompute, FindsAScheduleThatOnlyRecomputeMakesFit) {
  // One micro-batch of both chunks of a rank takes 1; recompute keeps an eighth of a chunk's half.
  SearchOptions options{.ranks = 2, .micro_batches = 4, .memory_limit = 0.7, .budget = 100};
  options.cost = [](const Shape& shape) {
    Cost cost = Cost::unit(shape);
    cost.memory_boundary.assign(static_cast<std::size_t>(shape.stages()), 0.0625);
    return cost;
  };
  EXPECT_FALSE(search(options).best.has_value());

  options.recompute = true;
  const SearchResult result = search(options);

  ASSERT_TRUE(result.best.has_value());
  expect_sound(options, *result.best);
  EXPECT_NE(recompute_text(result.best->recomputed), "none");
  EXPECT_THAT(front_table(result.front),
              ::testing::HasSubstr(" + recompute " + recompute_text(result.best->recomputed)));
}

TEST(SearchRecompute, RecomputesNothingWhereThereIsRoom) {
  for (const double limit : {kNone, 100.0}) {
    SearchOptions options{
        .ranks = 4, .micro_batches = 8, .memory_limit = limit, .cost = uneven, .budget = 200};
    const SearchResult plain = search(options);
    options.recompute = true;
    const SearchResult result = search(options);
    EXPECT_EQ(result.best->program, plain.best->program);
    for (const FoundSchedule& found : result.front)
      EXPECT_EQ(recompute_text(found.recomputed), "none") << found.generator;
  }
}

TEST(SearchRecompute, OfManyStagesIsNoSlowerThanWithout) {
  for (const double limit : {2.0, 3.0, 5.0}) {
    SearchOptions options{.ranks = 10, .micro_batches = 16, .chunks = 2, .memory_limit = limit};
    options.cost = uneven;
    options.budget = 200;
    const SearchResult plain = search(options);
    options.recompute = true;
    const SearchResult result = search(options);
    ASSERT_TRUE(result.best.has_value());
    expect_sound(options, *result.best);
    EXPECT_GE(result.best->makespan, result.lower_bound);
    if (plain.best) {
      EXPECT_LE(result.best->makespan, plain.best->makespan);
    }
    EXPECT_EQ(result.best->program, search(options).best->program);
  }
}

TEST(SearchRecompute, KnowsTheSlicesOfAMicroBatch) {
  SearchOptions options{
      .ranks = 2, .micro_batches = 3, .slices = 2, .memory_limit = 0.8, .budget = 100};
  options.cost = [](const Shape& shape) { return Cost::unit(shape); };
  EXPECT_FALSE(search(options).best.has_value());
  options.recompute = true;
  const SearchResult result = search(options);
  ASSERT_TRUE(result.best.has_value());
  expect_sound(options, *result.best);
}

TEST(SearchRecompute, TakesARecomputeOnlyRightBeforeItsBackward) {
  const Program program = insert_recompute(generate("1f1b", {.ranks = 2, .micro_batches = 2}));
  const Cost cost = Cost::unit(program.shape);
  EXPECT_TRUE(relist(program, cost).has_value());
  Program apart = program;
  std::swap(apart.ranks[1][1], apart.ranks[1][2]);  // its backward now comes first
  EXPECT_THROW((void)relist(apart, cost), InvalidArgument);
}

TEST(RecomputeText, IsReadAsItIsWritten) {
  for (const auto& choice : every_choice(5))
    EXPECT_EQ(parse_recompute_stages(recompute_text(choice), 5), choice);
  EXPECT_EQ(recompute_text({false, false}), "none");
  EXPECT_EQ(recompute_text({true, true}), "all");
  EXPECT_EQ(recompute_text({true, false, true, true, true, false}), "stages:0,2-4");
  EXPECT_EQ(parse_recompute_stages("stages:1-2,1", 3), (std::vector<bool>{false, true, true}));
}

TEST(RecomputeText, IsRefusedWithWhatIsAllowed) {
  const auto refusal = [](const char* text) -> std::string {
    try {
      (void)parse_recompute_stages(text, 4);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no refusal";
  };
  const std::string allowed = "; allowed is none, all or stages:LIST (numbers and ranges A-B)";
  EXPECT_EQ(refusal("some"), "recompute 'some': unknown choice" + allowed);
  EXPECT_EQ(refusal("stages:"), "recompute 'stages:': '' is not a stage" + allowed);
  EXPECT_EQ(refusal("stages:1,x"), "recompute 'stages:1,x': 'x' is not a stage" + allowed);
  EXPECT_EQ(refusal("stages:-1"), "recompute 'stages:-1': '-1' is not a stage" + allowed);
  EXPECT_EQ(refusal("stages:3-1"),
            "recompute 'stages:3-1': the range '3-1' runs downwards" + allowed);
  EXPECT_EQ(refusal("stages:1-4"),
            "recompute 'stages:1-4': there is no stage 4, the stages are 0 to 3" + allowed);
}

}  // namespace
}  // namespace millrace
