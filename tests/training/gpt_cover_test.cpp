// A transformer's bits are those of a plain loop whatever the stages, schedule, executor, links
// between processes, recompute, slices, lengths, cut and threads of a rank, and wherever it was
// stopped and resumed: a cover of all pairs of such choices. `./run soak` takes thousands of cases
// more.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "training/gpt_runs.hpp"

namespace millrace::testing_training {
namespace {

constexpr std::uint64_t kCoverSeed = 1;

const std::vector<test::Choice>& gpt_cover() {
  static const std::vector<test::Choice> cover = gpt_matrix().pairwise(kCoverSeed);
  return cover;
}

class GptCover : public testing::TestWithParam<std::string> {};

TEST_P(GptCover, HasTheBitsOfThePlainLoop) {
  std::size_t cases = 0;
  for (const test::Choice& choice : gpt_cover()) {
    const GptCase of = case_of(choice);
    if (of.place != GetParam()) continue;
    SCOPED_TRACE(gpt_matrix().text(choice));
    const GptRun found = run(of);
    EXPECT_EQ(found.losses, wanted(of).losses);
    EXPECT_EQ(found.weights, wanted(of).weights);
    ++cases;
  }
  EXPECT_GT(cases, 34U);  // at least one of every schedule
}

/// Sockets have ZeroMq in their names, and the flow graph FlowGraph, for filters of sanitizers.
std::string name_of_place(const testing::TestParamInfo<std::string>& tested) {
  static const std::map<std::string, std::string> names = {{"sequential", "Sequential"},
                                                           {"ranks", "Ranks"},
                                                           {"flow-graph", "FlowGraph"},
                                                           {"ipc", "ZeroMqIpc"},
                                                           {"tcp", "ZeroMqTcp"}};
  return names.at(tested.param);
}

INSTANTIATE_TEST_SUITE_P(Places,
                         GptCover,
                         testing::Values("sequential", "ranks", "flow-graph", "ipc", "tcp"),
                         name_of_place);

TEST(GptMatrix, IsCoveredInEveryPairThatHasAMeaning) {
  const test::Matrix& matrix = gpt_matrix();
  // 36 schedules, 27 without slices: those in 2 and in 3; three in both directions on 1 and on 3
  // ranks; 1 rank over two kinds of sockets; six orders of their own resumed; lines in 2 and in
  // 3 slices; four of at least p slices and one of at least 11 micro-batches on 4 ranks.
  EXPECT_EQ(matrix.impossible().size(), 27U * 2 + 3 * 2 + 2 + 6 + 2 + 4 + 1);
  EXPECT_EQ(matrix.pairs(), 1676U);
  EXPECT_EQ(matrix.covered_by(gpt_cover()), matrix.pairs() - matrix.impossible().size());
}

TEST(GptMatrix, CountsWhatIsLeftOut) {
  const std::map<std::string, std::size_t> excluded = {
      {"a schedule without slices has one", 1'555'200},
      {"a pipeline in both directions has an even number of ranks", 43'200},
      {"a cycle of slices has at most a slice a rank", 43'200},
      {"the slices of a cycle divide the ranks", 14'400},
      {"a group of one micro-batch has a slice for each rank", 172'800},
      {"braided units need 3p-1 micro-batches", 7'200},
      {"one process sends nobody anything", 135'360},
      {"an order of its own is that of one program", 56'880},
      {"lines of different lengths are not cut into slices", 167'040}};
  EXPECT_EQ(gpt_matrix().excluded(), excluded);
  EXPECT_EQ(gpt_matrix().cases(), 915'120U);
}

/// Whether there is such a program; its order has to be what the matrix says.
bool is_generated(const GptCase& of) {
  if (of.slices > 1 && !find_schedule(of.schedule).takes("slices")) return false;
  try {
    const bool ascends = accumulation(program_of(of)).ascending;
    EXPECT_TRUE(ascends || has_own_order(of.schedule)) << of.schedule;
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

TEST(GptMatrix, OmitsOnlyWhatTheCatalogueRejects) {
  const auto exclusions = gpt_exclusions();
  const std::size_t schedules = schedules_that_train().size();
  for (std::size_t schedule = 0; schedule < schedules; ++schedule)
    for (std::size_t ranks = 0; ranks < 4; ++ranks)
      for (std::size_t slices = 0; slices < 3; ++slices) {
        test::Choice choice(gpt_factors().size(), 0);
        choice[kRanks] = ranks;
        choice[kSchedule] = schedule;
        choice[kSlices] = slices;
        const bool is_excluded = std::ranges::any_of(
            exclusions, [&](const auto& exclusion) { return exclusion.excludes(choice); });
        EXPECT_EQ(is_generated(case_of(choice)), !is_excluded) << gpt_matrix().text(choice);
      }
}

}  // namespace
}  // namespace millrace::testing_training
