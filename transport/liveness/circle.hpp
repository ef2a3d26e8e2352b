// Who watches whom. In a small world everybody watches everybody. In a large one that would be a
// connection per pair, of which most carry nothing else: there a rank watches those that are a
// power of two away in the circle of ranks, and whoever it talks with.
#pragma once

#include <algorithm>
#include <vector>

#include "millrace/core/ids.hpp"

namespace millrace {

inline constexpr int kSmallWorld = 17;

/// The ranks that `self` watches from the beginning, nearest first. Whoever is watched watches
/// back.
[[nodiscard]] inline std::vector<Rank> watched_by(Rank self, int world) {
  std::vector<Rank> ranks;
  const auto add = [&](int distance) {
    const Rank rank{(self.value + distance) % world};
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  const auto next = [&](int distance) { return world > kSmallWorld ? 2 * distance : distance + 1; };
  for (int distance = 1; distance < world; distance = next(distance)) {
    add(distance);
    add(world - distance);
  }
  return ranks;
}

}  // namespace millrace
