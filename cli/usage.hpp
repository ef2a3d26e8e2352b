// Messages for wrong command lines: what was typed, what is allowed, the nearest name.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace millrace::cli {

/// The message for an error of the parser of `app`: a mistyped subcommand or option with the
/// nearest name, an option with its missing or wrong value; last, which --help to read. `first` is
/// the first argument, the subcommand.
[[nodiscard]] std::string usage_message(const CLI::App& app,
                                        const CLI::ParseError& error,
                                        const std::string& first);

/// The name that takes the fewest insertions, deletions and substitutions to become `typed`; empty
/// when that is more than half of its letters.
[[nodiscard]] std::string nearest_name(const std::string& typed,
                                       const std::vector<std::string>& names);

/// "; did you mean --ranks?" for the option of the subcommand that is nearest to `typed` (with its
/// dashes); empty when none is near.
[[nodiscard]] std::string suggested_option(const std::string& typed, const CLI::App& subcommand);

/// Has values of integers, numbers and switches checked, of the application and its subcommands,
/// also an integer beyond 64 bits, which the parser would cut. Call it when all have their options.
void check_values(CLI::App& app);

}  // namespace millrace::cli
