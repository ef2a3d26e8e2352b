#include "training/named_settings.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"

namespace millrace {
namespace {

/// "; the nearest of every, factor is 'every'".
std::string nearest_of(std::string_view given, std::span<const std::string_view> known) {
  if (known.empty()) return "; there is none here";
  const auto nearest = std::ranges::min_element(
      known, {}, [&](std::string_view name) { return edit_distance(given, name); });
  return "; the nearest of " + listed(known) + " is '" + std::string(*nearest) + "'";
}

template <class Number>
std::optional<Number> read(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return {};
  return value;
}

}  // namespace

std::string listed(std::span<const std::string_view> names) {
  std::string all;
  for (const std::string_view name : names) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

std::string exact_text(double number) {
  std::array<char, 40> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

NamedSettings::NamedSettings(std::string_view text, std::span<const std::string_view> known) {
  for (std::size_t first = 0; first <= text.size();) {
    const std::size_t comma = std::min(text.find(',', first), text.size());
    const std::string_view setting = text.substr(first, comma - first);
    first = comma + 1;
    const std::size_t equals = std::min(setting.find('='), setting.size());
    const std::string name(setting.substr(0, equals));
    require(!name.empty(), [&] {
      return "'" + std::string(text) + "' has a setting without a name; known are " + listed(known);
    });
    require(std::ranges::find(known, name) != known.end(),
            [&] { return "unknown setting '" + name + "'" + nearest_of(name, known); });
    const std::string value(equals < setting.size() ? setting.substr(equals + 1) : "");
    const bool bare = equals == setting.size();
    require(values_.emplace(name, bare ? "yes" : value).second,
            [&] { return "setting '" + name + "' is given twice"; });
  }
}

const std::string* NamedSettings::find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<double> NamedSettings::number(std::string_view name) const {
  const std::string* text = find(name);
  if (text == nullptr) return {};
  const auto value = read<double>(*text);
  require(value && std::isfinite(*value),
          [&] { return std::string(name) + " " + *text + ": must be a number"; });
  return value;
}

std::optional<std::int64_t> NamedSettings::count(std::string_view name) const {
  const std::string* text = find(name);
  if (text == nullptr) return {};
  const auto value = read<std::int64_t>(*text);
  require(value && *value >= 1,
          [&] { return std::string(name) + " " + *text + ": must be an integer from 1"; });
  return value;
}

std::optional<bool> NamedSettings::choice(std::string_view name) const {
  const std::string* text = find(name);
  if (text == nullptr) return {};
  require(*text == "yes" || *text == "no",
          [&] { return std::string(name) + " " + *text + ": must be yes or no"; });
  return *text == "yes";
}

}  // namespace millrace
