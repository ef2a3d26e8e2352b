// Which parameters a pattern of global names means.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// Whether the whole `name` is as `pattern` says, in which `*` is any run of characters (also none)
/// and every other character itself. Cost: O(pattern x name).
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

/// "; the nearest of 6 is 'layers.0.weight'"; nothing where none is known.
[[nodiscard]] std::string nearest_to(std::string_view wanted, std::span<const std::string> known);

/// Which of the names match. Throws InvalidArgument when none does, naming the nearest.
[[nodiscard]] std::vector<std::size_t> matching(std::string_view pattern,
                                                std::span<const std::string> names);

}  // namespace millrace
