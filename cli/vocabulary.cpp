// See vocabulary.hpp.
#include "cli/vocabulary.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace millrace::cli {

namespace {

using Names = std::pair<std::string_view, std::string_view>;

/// The counts of a schedule's shape have a letter, the same in every verb.
constexpr std::array<Names, 4> kLetters = {
    {{"ranks", "-p"}, {"micro_batches", "-m"}, {"chunks", "-v"}, {"slices", "-q"}}};

/// Costs are typed often, and short.
constexpr std::array<Names, 6> kShort = {{{"forward", "--f"},
                                          {"input", "--i"},
                                          {"weight", "--w"},
                                          {"memory_forward", "--mem-f"},
                                          {"memory_input", "--mem-i"},
                                          {"memory_weight", "--mem-w"}}};

template <std::size_t size>
std::string_view found_in(const std::array<Names, size>& names, std::string_view parameter) {
  for (const auto& [name, flag] : names)
    if (name == parameter) return flag;
  return {};
}

std::string long_flag(std::string_view parameter) {
  if (const auto flag = found_in(kShort, parameter); !flag.empty()) return std::string(flag);
  std::string text = "--" + std::string(parameter);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

}  // namespace

std::string flag(std::string_view parameter) {
  const auto letter = found_in(kLetters, parameter);
  return letter.empty() ? long_flag(parameter) : std::string(letter);
}

std::string flags(std::string_view parameter) {
  const auto letter = found_in(kLetters, parameter);
  return letter.empty() ? long_flag(parameter) : std::string(letter) + "," + long_flag(parameter);
}

std::string spelled(const InvalidArgument& error) {
  return error.sentence().text(flag);
}

}  // namespace millrace::cli
