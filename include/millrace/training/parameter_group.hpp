// Parameters that are trained in another way than the rest, found by their global names.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

/// Settings of the parameters whose names match. What is not said stays as it is, so a parameter
/// may be in several groups: of those that say a setting, the last one decides it.
struct ParameterGroup {
  std::string pattern;  ///< of global names, `*` for any run of characters: "layers.0.*"
  std::optional<double> learning_rate_factor = {};  ///< times the learning rate; at least 0
  /// Instead of the optimizer's, of those that decay (biases and norms do not); at least 0.
  std::optional<double> weight_decay = {};
  std::optional<bool> frozen = {};  ///< they stay as they are, outside the gradient norm

  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

/// Reads "PATTERN:lr=0.1,weight-decay=0,frozen" with any of these settings, "frozen=no" to free
/// what an earlier group froze. Throws InvalidArgument that says what is allowed.
[[nodiscard]] ParameterGroup parse_parameter_group(std::string_view text);

/// In that form, all digits of its numbers.
[[nodiscard]] std::string to_string(const ParameterGroup& group);

/// Throws InvalidArgument when a number is out of its range.
void check(const ParameterGroup& group);

/// Throws InvalidArgument when the group's pattern matches none of the names, naming the nearest.
void check_names(const ParameterGroup& group, std::span<const std::string> names);

}  // namespace millrace
