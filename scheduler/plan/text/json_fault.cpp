// Faults of JSON texts; see json_fault.hpp.
#include "plan/text/json_fault.hpp"

#include <algorithm>
#include <utility>

namespace millrace {

Diagnostic at_offset(std::string_view text, std::size_t offset, std::string sentence) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const std::size_t newline = before.rfind('\n');
  const auto lines = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
  return {lines + 1, before.size() - start + 1, std::move(sentence)};
}

namespace {

constexpr int kMostNesting = 64;

/// Where a list or object begins that lies too deep in others: a document of brackets alone would
/// take a hundred times its length of memory.
std::size_t too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char byte = text[at];
    if (quoted && byte == '\\') ++at;
    if (byte == '"') quoted = !quoted;
    if (quoted) continue;
    if ((byte == '[' || byte == '{') && ++depth > kMostNesting) return at;
    if (byte == ']' || byte == '}') --depth;
  }
  return std::string_view::npos;
}

}  // namespace

ParsedJson parse_json(std::string_view text) {
  using nlohmann::json;
  if (const std::size_t deep = too_deep(text); deep != std::string_view::npos)
    return {nullptr,
            at_offset(text,
                      deep,
                      "lists and objects are nested more than " + std::to_string(kMostNesting) +
                          " deep")};
  try {
    return {json::parse(text.begin(), text.end()), std::nullopt};
  } catch (const json::parse_error& error) {
    const std::size_t offset = error.byte == 0 ? 0 : error.byte - 1;
    return {nullptr, at_offset(text, offset, "this is not JSON")};
  } catch (const json::out_of_range&) {
    return {nullptr, Diagnostic{1, 1, "a number in the file is too large"}};
  }
}

Diagnostic located(std::string_view text,
                   const std::vector<JsonStep>& path,
                   std::string sentence,
                   std::size_t beyond) {
  return at_offset(text, json_place(text, path) + beyond, std::move(sentence));
}

}  // namespace millrace
