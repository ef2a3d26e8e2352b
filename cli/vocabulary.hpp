// One vocabulary: what the command line calls the parameters that the library names. Only here does
// a parameter get its flag, and every subcommand takes its flags from here.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/shape.hpp"

namespace millrace::cli {

/// What a sentence calls the parameter: "-p" for ranks, "--group" for group.
[[nodiscard]] std::string flag(std::string_view parameter);

/// All names of its option, as a subcommand registers them: "-p,--ranks", "--group".
[[nodiscard]] std::string flags(std::string_view parameter);

/// What went wrong, with parameters called by their flags.
[[nodiscard]] std::string spelled(const std::exception& error);

/// A line on what to do where the pipeline cannot fill; empty elsewhere.
[[nodiscard]] std::string filling_hint(const Shape& shape);

}  // namespace millrace::cli
