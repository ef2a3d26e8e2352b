// How settings of each kind are written as text and read from it.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/training/settings.hpp"
#include "training/named_settings.hpp"

namespace millrace::values {

using Options = const TrainerOptions&;

/// The numbers from `least` to below `most`.
struct Range {
  double least = 0;
  double most = std::numeric_limits<double>::infinity();
  bool has_least = true;  ///< false: values are above it

  [[nodiscard]] bool has(double value) const {
    return (has_least ? value >= least : value > least) && value < most;
  }

  [[nodiscard]] std::string text() const {
    if (!has_least) return "above " + exact_text(least);
    return "at least " + exact_text(least) +
           (std::isinf(most) ? " and finite" : " and below " + exact_text(most));
  }
};

inline constexpr Range kFraction = {.most = 1};
inline constexpr Range kAboveZero = {.has_least = false};
inline constexpr std::int64_t kMost = 1'000'000'000;
inline constexpr std::int64_t kAnyCount = std::numeric_limits<std::int64_t>::max();

/// The number that the whole text is.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return {};
  return number;
}

/// A number, or one that may be unset. `member` returns a reference to it.
template <class Member>
SettingValue real(Member member, Range range = {}) {
  using Number = std::remove_cvref_t<decltype(member(std::declval<TrainerOptions&>()))>;
  constexpr bool kMayBeUnset = !std::is_same_v<Number, double>;
  return {SettingKind::Real,
          [member](Options options) {
            const std::optional<double> number = member(options);
            return number ? exact_text(*number) : "none";
          },
          [member, range](TrainerOptions& options, std::string_view text) {
            const auto number = number_in<double>(text);
            require((kMayBeUnset && text == "none") || (number && range.has(*number)),
                    fmt::format("must be {}{}", range.text(), kMayBeUnset ? ", or none" : ""));
            if constexpr (kMayBeUnset)
              member(options) = number;
            else
              member(options) = *number;
          }};
}

/// An integer from `least` to `most`.
template <class Member>
SettingValue integer(Member member, std::int64_t least, std::uint64_t most = kMost) {
  return {SettingKind::Integer,
          [member](Options options) { return fmt::format("{}", member(options)); },
          [member, least, most](TrainerOptions& options, std::string_view text) {
            using Number = std::remove_reference_t<decltype(member(options))>;
            const auto number = number_in<Number>(text);
            require(number && std::cmp_greater_equal(*number, least) &&
                        std::cmp_less_equal(*number, most),
                    fmt::format("must be from {} to {}", least, most));
            member(options) = *number;
          }};
}

/// An integer up to `most` that may be unset, written 0.
template <class Member>
SettingValue count_or_unset(Member member, std::int64_t most = kMost) {
  return {SettingKind::Integer,
          [member](Options options) { return fmt::format("{}", member(options).value_or(0)); },
          [member, most](TrainerOptions& options, std::string_view text) {
            const auto number = number_in<std::int64_t>(text);
            require(number && *number >= 0 && *number <= most,
                    fmt::format("must be from 0 to {}", most));
            member(options) = *number > 0 ? number : std::nullopt;
          }};
}

/// true or false.
template <class Member>
SettingValue yes_or_no(Member member) {
  return {SettingKind::Switch,
          [member](Options options) { return member(options) ? "true" : "false"; },
          [member](TrainerOptions& options, std::string_view text) {
            require(text == "true" || text == "false", "must be true or false");
            member(options) = text == "true";
          }};
}

/// A value that `parse` reads and `text` writes.
template <class Member, class Parse, class Text>
SettingValue parsed(Member member, Parse parse, Text text) {
  return {SettingKind::Text,
          [member, text](Options options) { return std::string(text(member(options))); },
          [member, parse](TrainerOptions& options, std::string_view given) {
            member(options) = parse(given);
          }};
}

/// The parts that are not empty.
inline std::vector<std::string> parts_of(std::string_view text, std::string_view between) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(between), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + between.size(), text.size()));
  }
  return parts;
}

/// A vector; `parse` and `text` are of one element.
template <class Member, class Parse, class Text>
SettingValue list(Member member, Parse parse, Text text, const char* between = " ") {
  return {SettingKind::List,
          [=](Options options) {
            std::vector<std::string> texts;
            for (const auto& element : member(options)) texts.push_back(text(element));
            return fmt::format("{}", fmt::join(texts, between));
          },
          [=](TrainerOptions& options, std::string_view given) {
            member(options).clear();
            for (const std::string& part : parts_of(given, between))
              member(options).push_back(parse(part));
          }};
}

}  // namespace millrace::values
