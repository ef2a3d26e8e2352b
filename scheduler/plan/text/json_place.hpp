// Where a value stands in a JSON text: nlohmann-json keeps no positions, and a fault without line
// and column is half a message.
#pragma once

#include <cstddef>
#include <string_view>
#include <variant>
#include <vector>

namespace millrace {

/// A step into a document: the name of a member or the index of an element.
using JsonStep = std::variant<std::string_view, std::size_t>;

/// Byte offset of the value at `path` in the valid JSON `text`, as deep as the path leads; of the
/// last one where a name occurs twice. Cost: O(length of the text).
[[nodiscard]] std::size_t json_place(std::string_view text, const std::vector<JsonStep>& path);

}  // namespace millrace
