// A JSON text that is not what it should be: parsing that returns the fault as a value, and faults
// of content with their line and column.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "millrace/scheduler/plan/text.hpp"

namespace millrace {

/// A step into a document: the name of a member or the index of an element.
using JsonStep = std::variant<std::string_view, std::size_t>;

/// Ends the reading of a document at its first fault of structure. The path may name members of the
/// document, which must outlive it.
struct JsonFault {
  std::vector<JsonStep> path;
  std::string message;
};

struct ParsedJson {
  nlohmann::json document;  ///< null when there is a fault
  std::optional<Diagnostic> fault;
};

/// Parses `text`; a fault is "this is not JSON" at its place, a list or object more than 64 deep in
/// others, or a number beyond every type (1e999), for which the JSON library gives no place.
[[nodiscard]] ParsedJson parse_json(std::string_view text);

/// The message with the line and column of the byte at `offset`.
[[nodiscard]] Diagnostic at_offset(std::string_view text, std::size_t offset, std::string message);

/// The message with the line and column of the value at `path` (and `beyond` bytes further) in the
/// valid JSON `text`.
[[nodiscard]] Diagnostic located(std::string_view text,
                                 const std::vector<JsonStep>& path,
                                 std::string message,
                                 std::size_t beyond = 0);

}  // namespace millrace
