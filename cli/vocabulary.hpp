// One vocabulary: what the command line calls the parameters that the library names. Only here does
// a parameter get its flag, and every verb takes its flags from here.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/sentence.hpp"
#include "millrace/scheduler/plan/shape.hpp"

namespace millrace::cli {

/// What a sentence calls the parameter: "-p" for ranks, "--group" for group.
[[nodiscard]] std::string flag(std::string_view parameter);

/// All names of its option, as a verb registers them: "-p,--ranks", "--group".
[[nodiscard]] std::string flags(std::string_view parameter);

/// The words of a verb with options under their present names. Says on standard error which old
/// name was typed. Words behind "--" are another verb's.
[[nodiscard]] std::vector<std::string> renamed(const std::string& verb,
                                               std::vector<std::string> words);

/// The present name of an option of the verb, without dashes: "ranks" for "stages" of train.
[[nodiscard]] std::string renamed_key(const std::string& verb, const std::string& key);

/// What went wrong, with parameters called by their flags.
[[nodiscard]] std::string spelled(const std::exception& error);

/// A line on what to do where the pipeline cannot fill; empty elsewhere.
[[nodiscard]] std::string filling_hint(const Shape& shape);

}  // namespace millrace::cli
