// One vocabulary: what the command line calls the parameters that the library names. Only here does
// a parameter get its flag, and every verb takes its flags from here.
#pragma once

#include <string>
#include <string_view>

#include "millrace/core/error.hpp"
#include "millrace/core/sentence.hpp"

namespace millrace::cli {

/// What a sentence calls the parameter: "-p" for ranks, "--group" for group.
[[nodiscard]] std::string flag(std::string_view parameter);

/// All names of its option, as a verb registers them: "-p,--ranks", "--group".
[[nodiscard]] std::string flags(std::string_view parameter);

/// What was refused, with parameters called by their flags.
[[nodiscard]] std::string spelled(const InvalidArgument& error);

}  // namespace millrace::cli
