// Text from a model: the sample at the end of a training, and the subcommand generate.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/training/dataset.hpp"
#include "millrace/training/generator.hpp"

namespace millrace::cli {

/// The continuations of `prompt`, without it. Throws InvalidArgument.
[[nodiscard]] std::vector<std::string> continued(Generator& generator,
                                                 const Vocabulary& vocabulary,
                                                 std::string_view prompt,
                                                 Sampling sampling);

/// The default prompt: a newline, or the first byte that the vocabulary knows.
[[nodiscard]] std::string plain_prompt(const Vocabulary& vocabulary);

/// The bytes that a vocabulary knows in hexadecimal digits, as a checkpoint's run.json holds them.
[[nodiscard]] std::string digits_of(const Vocabulary& vocabulary);

/// The reverse. Throws DataError for other text.
[[nodiscard]] Vocabulary vocabulary_of_digits(std::string_view digits);

}  // namespace millrace::cli
