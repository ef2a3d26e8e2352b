// Matching from left to right; only the last `*` is ever tried again. See name_pattern.hpp.
#include "plan/text/name_pattern.hpp"

#include <algorithm>
#include <charconv>

#include "millrace/core/error.hpp"

namespace millrace::plan {

namespace {

constexpr std::size_t kMostDigits = 9;

bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

/// Takes the number at the front of `name` away; nothing when there is none.
std::optional<std::int64_t> take_number(std::string_view& name) {
  const auto* const end = std::find_if_not(name.begin(), name.end(), is_digit);
  const auto digits = static_cast<std::size_t>(end - name.begin());
  if (digits == 0 || digits > kMostDigits) return std::nullopt;
  std::int64_t value = 0;
  std::from_chars(name.data(), name.data() + digits, value);
  name.remove_prefix(digits);
  return value;
}

}  // namespace

NamePattern::NamePattern(std::string_view text) {
  const std::string whole(text);
  while (!text.empty()) {
    const std::size_t special = std::min(text.find_first_of("{*"), text.size());
    add_literal(text.substr(0, special));
    text.remove_prefix(special);
    if (text.empty()) return;
    if (text.front() == '*') {
      pieces_.push_back({.literal = "", .anything = true});
      text.remove_prefix(1);
      continue;
    }
    const std::size_t close = text.find('}');
    require(close != std::string_view::npos, "the pattern '" + whole + "' has a { without }");
    add_number(text.substr(1, close - 1));
    text.remove_prefix(close + 1);
  }
}

std::vector<NamePattern> NamePattern::several(std::string_view text) {
  std::vector<NamePattern> patterns;
  while (!text.empty()) {
    const std::size_t bar = std::min(text.find('|'), text.size());
    patterns.emplace_back(text.substr(0, bar));
    text.remove_prefix(std::min(bar + 1, text.size()));
  }
  return patterns;
}

void NamePattern::add_literal(std::string_view text) {
  if (!text.empty()) pieces_.push_back({.literal = std::string(text)});
}

void NamePattern::add_number(std::string_view word) {
  const auto member = word == "stage"         ? &NameParts::stage
                      : word == "micro_batch" ? &NameParts::micro_batch
                      : word == "slice"       ? &NameParts::slice
                                              : nullptr;
  require(
      member != nullptr,
      "a pattern has {" + std::string(word) + "}; known are {stage}, {micro_batch} and {slice}");
  require(std::none_of(pieces_.begin(),
                       pieces_.end(),
                       [&](const Piece& piece) { return piece.number == member; }),
          "a pattern has {" + std::string(word) + "} twice");
  pieces_.push_back({.literal = "", .number = member});
}

bool NamePattern::has_stage() const {
  return std::any_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) {
    return piece.number == &NameParts::stage;
  });
}

std::optional<NameParts> NamePattern::match(std::string_view name) const {
  NameParts parts, parts_at_star;
  std::size_t at = 0, after_star = 0;
  std::string_view rest = name, rest_at_star;
  const auto fits = [&](const Piece& piece) {
    if (piece.number != nullptr) return (parts.*piece.number = take_number(rest)).has_value();
    if (!rest.starts_with(piece.literal)) return false;
    rest.remove_prefix(piece.literal.size());
    return true;
  };
  while (true) {
    if (at == pieces_.size() && rest.empty()) return parts;
    if (at < pieces_.size() && pieces_[at].anything) {
      after_star = ++at;
      rest_at_star = rest;
      parts_at_star = parts;
    } else if (at < pieces_.size() && fits(pieces_[at])) {
      ++at;
    } else {
      if (after_star == 0 || rest_at_star.empty()) return std::nullopt;
      rest_at_star.remove_prefix(1);
      rest = rest_at_star;
      parts = parts_at_star;
      at = after_star;
    }
  }
}

}  // namespace millrace::plan
