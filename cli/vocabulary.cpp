#include "cli/vocabulary.hpp"

#include <algorithm>
#include <array>
#include <iostream>
#include <utility>

namespace millrace::cli {

namespace {

using Names = std::pair<std::string_view, std::string_view>;

/// The counts of a schedule's shape, and of its copies, have a letter, the same in every verb.
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
                                          {"recompute_time", "--r"},
                                          {"tree_of_sums", "--accumulate-order tree"}}};

/// What some verbs called an option before all called it the same.
struct OldName {
  std::string_view verb, name, now;
};

constexpr std::array<OldName, 4> kOldNames = {{{"train", "stages", "ranks"},
                                               {"launch", "ranks", "processes"},
                                               {"keys", "ranks", "processes"},
                                               {"doctor", "ranks", "processes"}}};

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

std::string renamed_key(const std::string& verb, const std::string& key) {
  for (const OldName& old : kOldNames)
    if (old.verb == verb && old.name == key) {
      std::cerr << "millrace: --" << old.name << " of " << verb << " is called --" << old.now
                << " now\n";
      return std::string(old.now);
    }
  return key;
}

std::vector<std::string> renamed(const std::string& verb, std::vector<std::string> words) {
  for (std::string& word : words) {
    if (word == "--") break;
    if (!word.starts_with("--")) continue;
    const std::size_t end = std::min(word.find('='), word.size());
    word = "--" + renamed_key(verb, word.substr(2, end - 2)) + word.substr(end);
  }
  return words;
}

std::string spelled(const std::exception& error) {
  return sentence_of(error).text(flag);
}

std::string filling_hint(const Shape& shape) {
  if (shape.micro_batches >= shape.ranks) return "";
  const std::string ranks = std::to_string(shape.ranks);
  return ranks + " ranks share " + std::to_string(shape.micro_batches) +
         (shape.micro_batches == 1 ? " micro-batch" : " micro-batches") +
         ", too few to keep all busy: try " + flag("micro_batches") + " " + ranks + " or more.\n";
}

}  // namespace millrace::cli
