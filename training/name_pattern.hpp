// Which parameters a pattern of global names means.
#pragma once

#include <string_view>

namespace millrace {

/// Whether the whole `name` is as `pattern` says, in which `*` is any run of characters (also none)
/// and every other character itself. Cost: O(pattern x name).
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

}  // namespace millrace
