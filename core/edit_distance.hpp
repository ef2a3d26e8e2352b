// How far two names are apart, for messages that name the nearest known one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`, no letter
/// touched twice (optimal string alignment: Boytsov, "Indexing Methods for Approximate Dictionary
/// Searching", 2011). Cost: O(|a| |b|). Thread-safety: pure, any thread.
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> older, old, row(b.size() + 1);  // of two, one and no letter before
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    older = std::move(old);
    old = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({old[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), old[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], older[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace millrace
