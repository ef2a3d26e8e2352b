// Numbers in and out; see numbers.hpp.
#include "cli/numbers.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fmt/format.h>

#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

[[noreturn]] void refuse(const std::string& option,
                         const std::string& text,
                         const std::string& allowed) {
  throw InvalidArgument(option + " " + text + ": must be " + allowed);
}

}  // namespace

std::int64_t whole_number(const std::string& option,
                          const std::string& text,
                          std::int64_t least,
                          std::int64_t most) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most)
    refuse(
        option, text, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  return value;
}

// Beyond the default of `most`, ticks would not be exact integers any more.
double decimal(const std::string& option, const std::string& text, double least, double most) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value) || value < least || value > most)
    refuse(option, text, "a number from " + plain(least) + " to " + plain(most));
  return value;
}

std::vector<double> number_list(const std::string& option, const std::string& text, double least) {
  std::vector<double> list;
  std::size_t from = 0;
  while (from <= text.size()) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    if (comma == from) refuse(option, text, "numbers with one comma between two of them");
    list.push_back(decimal(option, text.substr(from, comma - from), least));
    from = comma + 1;
  }
  return list;
}

std::string plain(double value) {
  // Whole numbers are exact as long as neighbours differ.
  const bool whole = value == std::round(value) && std::abs(value) < 9e15;
  return whole && std::abs(value) >= 1e12 ? fmt::format("{:.0f}", value)
                                          : fmt::format("{:.12g}", value);
}

std::string brief(double value, int digits) {
  if (value == std::round(value)) return plain(value);
  return std::abs(value) >= std::pow(10, digits) ? fmt::format("{:.0f}", value)
                                                 : fmt::format("{:.{}g}", value, digits);
}

std::string exact(double value) {
  std::array<char, 40> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string value_count(std::size_t values) {
  return std::to_string(values) + (values == 1 ? " value" : " values");
}

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      text += i == 0 ? row[i] + pad : "  " + pad + row[i];
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace millrace::cli
