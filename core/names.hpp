// The names of an enum's values, in one table.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"

namespace millrace {

/// Thread-safety: immutable, share freely.
template <class Enum, std::size_t count>
struct Names {
  std::string_view what;  ///< that a value is: "executor"
  std::array<std::pair<std::string_view, Enum>, count> rows;

  /// Empty for a value without a name.
  [[nodiscard]] constexpr std::string_view of(Enum value) const {
    for (const auto& [name, each] : rows)
      if (each == value) return name;
    return {};
  }

  /// Throws InvalidArgument with all names, and the nearest where it is near.
  [[nodiscard]] Enum value(std::string_view name) const {
    for (const auto& [known, value] : rows)
      if (known == name) return value;
    throw InvalidArgument("unknown " + std::string(what) + " '" + std::string(name) +
                          "'; known are " + listed() + suggestion(name));
  }

  /// All of them, in the order of the table.
  [[nodiscard]] constexpr std::array<Enum, count> values() const {
    std::array<Enum, count> all{};
    std::ranges::transform(rows, all.begin(), [](const auto& row) { return row.second; });
    return all;
  }

  /// "a, b, c".
  [[nodiscard]] std::string listed() const {
    std::string text;
    for (const auto& row : rows) text += (&row == rows.data() ? "" : ", ") + std::string(row.first);
    return text;
  }

 private:
  [[nodiscard]] std::string suggestion(std::string_view name) const {
    const auto& nearest = *std::ranges::min_element(
        rows, {}, [&](const auto& row) { return edit_distance(name, row.first); });
    if (edit_distance(name, nearest.first) > name.size() / 3) return {};
    return "; did you mean " + std::string(nearest.first) + "?";
  }
};

}  // namespace millrace
