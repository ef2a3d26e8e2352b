// Greedy matching: only the last star has ever to be tried again.
#include "training/name_pattern.hpp"

#include <algorithm>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"

namespace millrace {

bool matches(std::string_view pattern, std::string_view name) {
  std::size_t at = 0;
  std::size_t in_name = 0;
  std::size_t star = std::string_view::npos;
  std::size_t taken = 0;  // up to where the last star has taken the name
  while (in_name < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = in_name;
    } else if (at < pattern.size() && pattern[at] == name[in_name]) {
      ++at;
      ++in_name;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      in_name = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == std::string_view::npos;
}

std::string nearest_to(std::string_view wanted, std::span<const std::string> known) {
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& name) { return edit_distance(wanted, name); });
  if (nearest == known.end()) return {};
  return "; the nearest of " + std::to_string(known.size()) + " is '" + *nearest + "'";
}

std::vector<std::size_t> matching(std::string_view pattern, std::span<const std::string> names) {
  std::vector<std::size_t> meant;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (matches(pattern, names[i])) meant.push_back(i);
  require(!meant.empty(), [&] {
    return "no parameter is called '" + std::string(pattern) + "'" + nearest_to(pattern, names);
  });
  return meant;
}

}  // namespace millrace
