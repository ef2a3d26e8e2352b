// Faults of JSON texts; see json_fault.hpp.
#include "plan/text/json_fault.hpp"

#include <algorithm>
#include <utility>

namespace millrace {

namespace {

class Skipper {
 public:
  explicit Skipper(std::string_view text) : text_(text) {}

  // Offset of the value that `step` leads to from the container at `from`.
  std::optional<std::size_t> enter(std::size_t from, const JsonStep& step) {
    at_ = from;
    blanks();
    if (done() || (text_[at_] != '{' && text_[at_] != '[')) return std::nullopt;
    const bool object = text_[at_++] == '{';
    std::optional<std::size_t> found;
    for (std::size_t index = 0; !closes(); ++index) {
      std::string_view name;
      if (object) {
        name = string();
        blanks();
        ++at_;  // the colon
      }
      blanks();
      const bool match = object ? matches(step, name) : matches(step, index);
      if (match) found = at_;
      value();
      blanks();
      if (!done() && text_[at_] == ',') ++at_;
    }
    return found;
  }

 private:
  [[nodiscard]] bool done() const { return at_ >= text_.size(); }

  static bool matches(const JsonStep& step, std::string_view name) {
    const auto* wanted = std::get_if<std::string_view>(&step);
    return wanted != nullptr && *wanted == name;
  }
  static bool matches(const JsonStep& step, std::size_t index) {
    const auto* wanted = std::get_if<std::size_t>(&step);
    return wanted != nullptr && *wanted == index;
  }

  void blanks() {
    while (!done() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool closes() {
    blanks();
    return done() || text_[at_] == '}' || text_[at_] == ']';
  }

  // The raw content between the quotes.
  std::string_view string() {
    const std::size_t from = ++at_;
    while (!done() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2U : 1U;
    const std::size_t length = (done() ? text_.size() : at_) - from;
    ++at_;
    return text_.substr(from, length);
  }

  // One value of any kind, without recursion: nesting is only counted.
  void value() {
    std::size_t depth = 0;
    while (!done()) {
      const char byte = text_[at_];
      if (byte == '"') {
        string();
      } else if (byte == '{' || byte == '[') {
        ++depth;
        ++at_;
      } else if (byte == '}' || byte == ']') {
        if (depth == 0) return;
        --depth;
        ++at_;
      } else if (byte == ',' && depth == 0) {
        return;
      } else {
        ++at_;
        continue;
      }
      if (depth == 0) return;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::size_t json_place(std::string_view text, const std::vector<JsonStep>& path) {
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  std::size_t at = start == std::string_view::npos ? 0 : start;
  for (const JsonStep& step : path) {
    const auto inside = Skipper(text).enter(at, step);
    if (!inside) return at;
    at = *inside;
  }
  return at;
}

}  // namespace

Diagnostic at_offset(std::string_view text, std::size_t offset, std::string message) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const std::size_t newline = before.rfind('\n');
  const auto lines = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
  return {lines + 1, before.size() - start + 1, std::move(message)};
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
                   std::string message,
                   std::size_t beyond) {
  return at_offset(text, json_place(text, path) + beyond, std::move(message));
}

}  // namespace millrace
