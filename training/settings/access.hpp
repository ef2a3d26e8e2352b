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

namespace millrace::access {

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

/// The number that the whole text is.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return {};
  return number;
}

/// A number. `member` returns a reference to it.
template <class Member>
SettingAccess real(Member member, Range range = {}) {
  return {.kind = SettingKind::Real,
          .get = [member](const TrainerOptions& options) -> std::string {
            if constexpr (requires { member(options).has_value(); })
              return member(options) ? exact_text(*member(options)) : "none";
            else
              return exact_text(member(options));
          },
          .set =
              [member, range](TrainerOptions& options, std::string_view text) {
                if constexpr (requires { member(options).reset(); })
                  if (text == "none") return member(options).reset();
                const auto number = number_in<double>(text);
                require(number && range.has(*number), "must be " + range.text());
                member(options) = *number;
              }};
}

/// An integer from `least` to `most`.
template <class Member>
SettingAccess integer(Member member, std::int64_t least, std::uint64_t most = kMost) {
  return {
      .kind = SettingKind::Integer,
      .get = [member](const TrainerOptions& options) { return fmt::format("{}", member(options)); },
      .set =
          [member, least, most](TrainerOptions& options, std::string_view text) {
            using Number = std::remove_reference_t<decltype(member(options))>;
            const auto is_whole =
                text.find_first_not_of("0123456789", text.starts_with('-') ? 1 : 0) == text.npos;
            const auto number = number_in<Number>(text);
            require(
                number && std::cmp_greater_equal(*number, least) &&
                    std::cmp_less_equal(*number, most),
                fmt::format("must be {}from {} to {}", is_whole ? "" : "an integer ", least, most));
            member(options) = *number;
          }};
}

/// true or false.
template <class Member>
SettingAccess yes_or_no(Member member) {
  return {
      .kind = SettingKind::Switch,
      .get = [member](const TrainerOptions& options) { return member(options) ? "true" : "false"; },
      .set =
          [member](TrainerOptions& options, std::string_view text) {
            require(text == "true" || text == "false", "must be true or false");
            member(options) = text == "true";
          }};
}

/// A value that `parse` reads and `text` writes.
template <class Member, class Parse, class Text>
SettingAccess parsed(Member member, Parse parse, Text text) {
  return {.get = [member, text](
                     const TrainerOptions& options) { return std::string(text(member(options))); },
          .set = [member, parse](TrainerOptions& options,
                                 std::string_view given) { member(options) = parse(given); }};
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
SettingAccess list(Member member, Parse parse, Text text, const char* between = " ") {
  return {.kind = SettingKind::List,
          .get =
              [=](const TrainerOptions& options) {
                std::vector<std::string> texts;
                for (const auto& element : member(options)) texts.push_back(text(element));
                return fmt::format("{}", fmt::join(texts, between));
              },
          .set =
              [=](TrainerOptions& options, std::string_view given) {
                member(options).clear();
                for (const std::string& part : parts_of(given, between))
                  member(options).push_back(parse(part));
              }};
}

}  // namespace millrace::access
