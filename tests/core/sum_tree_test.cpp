// The tree of sums against its definition, in numbers whose sums show in which order they were
// added.
#include "core/sum_tree.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace millrace {
namespace {

using Leaves = std::vector<std::optional<float>>;

/// The definition: no tree, no ranges.
std::optional<float> naive(std::vector<std::optional<float>> leaves) {
  if (leaves.size() == 1) return leaves.front();
  const auto middle = leaves.begin() + static_cast<std::ptrdiff_t>((leaves.size() + 1) / 2);
  const auto first = naive({leaves.begin(), middle});
  const auto rest = naive({middle, leaves.end()});
  if (!first || !rest) return first ? first : rest;
  return *first + *rest;
}

Leaves leaves_of(int count, std::mt19937& random) {
  Leaves leaves;
  for (int i = 0; i < count; ++i) {
    leaves.emplace_back(std::ldexp(static_cast<float>(random() % 1999) - 999.0F,
                                   static_cast<int>(random() % 40) - 20));
    if (random() % 5 == 0) leaves.back().reset();
  }
  return leaves;
}

std::optional<float> summed(const Leaves& leaves, LeafRange node, std::vector<int> order) {
  PartialSums<float> sums(SumTree(static_cast<int>(leaves.size())), node);
  for (const int leaf : order) {
    EXPECT_FALSE(sums.is_complete());
    sums.give(leaf, leaves[static_cast<std::size_t>(leaf)], [](float& a, float b) { a += b; });
  }
  EXPECT_TRUE(sums.is_complete());
  return sums.take();
}

std::vector<int> numbers(LeafRange node) {
  std::vector<int> order(static_cast<std::size_t>(node.count()));
  std::iota(order.begin(), order.end(), node.first);
  return order;
}

TEST(SumTree, AnyLeafOrder_SameSum) {
  std::mt19937 random(3);
  int differs = 0;
  for (int count = 1; count <= 40; ++count)
    for (int round = 0; round < 20; ++round) {
      const Leaves leaves = leaves_of(count, random);
      std::vector<int> order = numbers({0, count});
      std::ranges::shuffle(order, random);
      const auto sum = summed(leaves, {0, count}, order);
      ASSERT_EQ(sum, naive(leaves)) << count;
      float ascending = 0;
      for (const auto& leaf : leaves) ascending += leaf.value_or(0.0F);
      differs += sum.value_or(0.0F) == ascending ? 0 : 1;
    }
  EXPECT_GT(differs, 100);  // or the numbers could not show it
}

TEST(SumTree, CutInPowersOfTwo_SameBits) {
  std::mt19937 random(4);
  for (const int count : {8, 16, 24, 40})
    for (int copies = 1; copies <= 8; copies *= 2) {
      const Leaves leaves = leaves_of(count, random);
      const int each = count / copies;
      Leaves parts;
      for (int copy = 0; copy < copies; ++copy) {
        const LeafRange node{copy * each, (copy + 1) * each};
        ASSERT_TRUE(SumTree(count).has(node)) << count << ", " << copies;
        parts.push_back(summed(leaves, node, numbers(node)));
      }
      EXPECT_EQ(summed(parts, {0, copies}, numbers({0, copies})), naive(leaves));
    }
}

TEST(SumTree, KeepsOneSumALevelWhileLeavesAscend) {
  for (int count = 1; count <= 70; ++count) {
    PartialSums<float> sums(SumTree(count), {0, count});
    int most = 0;
    for (int leaf = 0; leaf < count; ++leaf) {
      sums.give(leaf, 1.0F, [](float& a, float b) { a += b; });
      most = std::max(most, sums.held());
    }
    EXPECT_LE(most, static_cast<int>(std::log2(count)) + 1) << count;
    EXPECT_EQ(sums.take(), static_cast<float>(count));
  }
}

TEST(SumTree, AbsentLeavesAreNoZeros) {
  PartialSums<float> sums(SumTree(3), {0, 3});
  const auto add = [](float& a, float b) { a += b; };
  sums.give(0, std::nullopt, add);
  sums.give(1, -0.0F, add);
  sums.give(2, std::nullopt, add);
  ASSERT_TRUE(sums.is_complete());
  EXPECT_TRUE(std::signbit(sums.take().value()));  // 0 + -0 is 0
}

TEST(SumTree, KnowsItsNodes) {
  const SumTree tree(5);
  EXPECT_EQ(tree.sibling({0, 3}), (LeafRange{3, 5}));
  EXPECT_EQ(tree.parent({2, 3}), (LeafRange{0, 3}));
  EXPECT_EQ(tree.sibling({2, 3}), (LeafRange{0, 2}));
  for (const LeafRange none : {LeafRange{0, 4}, {1, 3}, {2, 4}, {2, 2}, {0, 6}})
    EXPECT_FALSE(tree.has(none)) << none.first << ", " << none.last;
  EXPECT_THROW(SumTree(0), InvalidArgument);
  EXPECT_THROW(PartialSums<float>(tree, {1, 3}), InvalidArgument);
}

}  // namespace
}  // namespace millrace
