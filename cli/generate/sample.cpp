#include "cli/generate/sample.hpp"

#include <charconv>
#include <fmt/format.h>
#include <system_error>

#include "millrace/core/error.hpp"

namespace millrace::cli {

std::vector<std::string> continued(Generator& generator,
                                   const Vocabulary& vocabulary,
                                   std::string_view prompt,
                                   Sampling sampling) {
  sampling.words = vocabulary.size();
  std::vector<std::string> texts;
  for (const auto& tokens : generator.generate(vocabulary.encode(prompt), sampling))
    texts.push_back(vocabulary.decode(tokens));
  return texts;
}

std::string plain_prompt(const Vocabulary& vocabulary) {
  return vocabulary.id_of('\n') >= 0 ? "\n" : vocabulary.bytes().substr(0, 1);
}

std::string digits_of(const Vocabulary& vocabulary) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string digits;
  for (const char byte : vocabulary.bytes()) {
    const auto number = static_cast<unsigned char>(byte);
    digits += kDigits[number / 16U];
    digits += kDigits[number % 16U];
  }
  return digits;
}

Vocabulary vocabulary_of_digits(std::string_view digits) {
  std::string bytes;
  for (std::size_t at = 0; at < digits.size(); at += 2) {
    const std::string_view pair = digits.substr(at, 2);
    unsigned number = 0;
    const auto [end, fault] = std::from_chars(pair.data(), pair.data() + pair.size(), number, 16);
    if (pair.size() != 2 || fault != std::errc() || end != pair.data() + 2)
      throw DataError(fmt::format("{}: must be two hexadecimal digits of a byte", pair));
    bytes += static_cast<char>(number);
  }
  return Vocabulary(bytes);
}

}  // namespace millrace::cli
