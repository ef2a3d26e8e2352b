#include "cli/vocabulary.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/training/settings.hpp"

namespace millrace::cli {

namespace {

using Names = std::pair<std::string_view, std::string_view>;

/// The counts of a schedule's shape, and of its copies, have a letter, the same in every
/// subcommand.
constexpr std::array<Names, 5> kLetters = {{{"ranks", "-p"},
                                            {"micro_batches", "-m"},
                                            {"chunks", "-v"},
                                            {"slices", "-q"},
                                            {"data_parallel", "-d"}}};

/// Costs are typed often, and short.
constexpr std::array<Names, 9> kShort = {{{"forward", "--f"},
                                          {"input", "--i"},
                                          {"weight", "--w"},
                                          {"memory_forward", "--mem-f"},
                                          {"memory_input", "--mem-i"},
                                          {"memory_weight", "--mem-w"},
                                          {"memory_boundary", "--mem-boundary"},
                                          {"recompute", "--r"},
                                          {"tree_of_sums", "--accumulate-order tree"}}};

template <std::size_t size>
std::string_view found_in(const std::array<Names, size>& names, std::string_view parameter) {
  for (const auto& [name, flag] : names)
    if (name == parameter) return flag;
  return {};
}

std::string long_flag(std::string_view parameter) {
  if (const auto flag = found_in(kShort, parameter); !flag.empty()) return std::string(flag);
  const auto row = std::ranges::find(settings(), parameter, &Setting::name);
  if (row != settings().end()) return "--" + row->flag_name();
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

std::string spelled(const std::exception& error) {
  return parameter_text(error).text(flag);
}

std::string filling_hint(const Shape& shape) {
  if (shape.micro_batches >= shape.ranks) return "";
  const std::string ranks = std::to_string(shape.ranks);
  return ranks + " ranks share " + std::to_string(shape.micro_batches) +
         (shape.micro_batches == 1 ? " micro-batch" : " micro-batches") +
         ", too few to keep all busy: try " + flag("micro_batches") + " " + ranks + " or more.\n";
}

}  // namespace millrace::cli
