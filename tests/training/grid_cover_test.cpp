// A grid's bits are those of one process, whatever the copies, places, schedule, links, passes,
// recompute and mini-batches, and wherever it was resumed: a cover of all pairs of such choices.
// `./run soak` takes many cases more.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "training/grid_matrix.hpp"

namespace millrace::testing_training {
namespace {

/// Three of them, of about twenty cases each.
const std::vector<test::Choice>& grid_cover() {
  static const std::vector<test::Choice> cover = [] {
    std::vector<test::Choice> all;
    for (const std::uint64_t seed : {1U, 2U, 3U})
      for (test::Choice& choice : grid_matrix().pairwise(seed)) all.push_back(std::move(choice));
    return all;
  }();
  return cover;
}

class GridCover : public testing::TestWithParam<std::string> {};

TEST_P(GridCover, HasTheBitsOfOneProcess) {
  std::size_t cases = 0;
  for (const test::Choice& choice : grid_cover()) {
    const GridCase of = grid_case_of(choice);
    if (of.link != GetParam()) continue;
    SCOPED_TRACE(grid_matrix().text(choice));
    const GridRun found = run(of);
    EXPECT_EQ(found.losses, wanted(of).losses);
    EXPECT_EQ(found.norms, wanted(of).norms);
    EXPECT_EQ(found.weights, wanted(of).weights);
    ++cases;
  }
  EXPECT_GT(cases, 8U);  // of some sixty
}

/// Sockets have ZeroMq in their names, for filters of sanitizers.
std::string name_of_link(const testing::TestParamInfo<std::string>& tested) {
  static const std::map<std::string, std::string> names = {{"threads", "Threads"},
                                                           {"shm", "SharedMemory"},
                                                           {"ipc", "ZeroMqIpc"},
                                                           {"tcp", "ZeroMqTcp"},
                                                           {"mixed", "ZeroMqMixed"}};
  return names.at(tested.param);
}

INSTANTIATE_TEST_SUITE_P(Links,
                         GridCover,
                         testing::Values("threads", "shm", "ipc", "tcp", "mixed"),
                         name_of_link);

TEST(GridMatrix, IsCoveredInEveryPair) {
  const test::Matrix& matrix = grid_matrix();
  EXPECT_TRUE(matrix.impossible().empty());
  EXPECT_EQ(matrix.covered_by(grid_cover()), matrix.pairs());
  EXPECT_EQ(matrix.excluded().at("one process sends nobody anything"), 11'520U);
  EXPECT_EQ(matrix.excluded().at("dualpipe-v has two micro-batches a rank"), 5'760U);
  EXPECT_EQ(matrix.cases(), 129'600U - 11'520U - 5'760U);
}

}  // namespace
}  // namespace millrace::testing_training
