// JSON as files of a checkpoint have it: no name twice in an object, no deep nesting, nothing that
// is not UTF-8. What one parser would read differently from another is refused.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace millrace {

/// Throws DataError that begins with `what` and says the offset.
[[nodiscard]] nlohmann::json parse_strictly(std::string_view text, const std::string& what);

}  // namespace millrace
