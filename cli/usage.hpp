// What is wrong with a command line, in one sentence that names what was typed.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace millrace::cli {

/// The sentence for what the parser of `app` refused: a mistyped verb or option with the nearest
/// name, an option with its missing or wrong value; last, which --help to read. `first` is the
/// first argument, where the verb stands.
[[nodiscard]] std::string usage_sentence(const CLI::App& app,
                                         const CLI::ParseError& error,
                                         const std::string& first);

/// The name that takes the fewest insertions, deletions and substitutions to become `typed`; empty
/// when that is more than half of its letters.
[[nodiscard]] std::string nearest_name(const std::string& typed,
                                       const std::vector<std::string>& names);

/// "; did you mean --ranks?" for the option of the verb that is nearest to `typed` (with its
/// dashes); empty when none is near.
[[nodiscard]] std::string suggested_option(const std::string& typed, const CLI::App& verb);

/// Makes the verb's whole-number options refuse what the parser would cut to its largest number.
/// Call it when the verb has all its options.
void refuse_overlong_numbers(CLI::App& verb);

}  // namespace millrace::cli
