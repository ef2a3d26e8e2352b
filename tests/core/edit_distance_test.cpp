// The distance of names against its definition, on every pair of short words.
#include "core/edit_distance.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace millrace {
namespace {

/// The definition, letter by letter from the end.
std::size_t naive(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const std::string a1 = a.substr(0, a.size() - 1), b1 = b.substr(0, b.size() - 1);
  std::size_t least = std::min(
      {naive(a1, b1) + (a.back() == b.back() ? 0 : 1), naive(a1, b) + 1, naive(a, b1) + 1});
  const bool swapped = !a1.empty() && !b1.empty() && a.back() == b1.back() && a1.back() == b.back();
  if (swapped)
    least = std::min(least, naive(a1.substr(0, a1.size() - 1), b1.substr(0, b1.size() - 1)) + 1);
  return least;
}

std::vector<std::string> words(std::size_t longest) {
  std::vector<std::string> all = {""};
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].size() < longest)
      for (const char letter : {'a', 'b', 'c'}) all.push_back(all[i] + letter);
  return all;
}

TEST(EditDistance, ShortWords_MatchTheDefinition) {
  const std::vector<std::string> all = words(4);
  for (const std::string& a : all)
    for (const std::string& b : all) ASSERT_EQ(edit_distance(a, b), naive(a, b)) << a << ' ' << b;
}

TEST(EditDistance, CountsTwoSwappedLettersAsOneMistake) {
  EXPECT_EQ(edit_distance("stpes", "steps"), 1U);
  EXPECT_EQ(edit_distance("1fb1", "1f1b"), 1U);
}

}  // namespace
}  // namespace millrace
