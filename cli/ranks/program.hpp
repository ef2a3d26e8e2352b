// Any program as the work of ranks: finding it as a shell would.
#pragma once

#include <string>

namespace millrace::cli {

/// The path of the program that was typed: itself where it has a slash, else the first of `folders`
/// (as PATH has them) that holds it. Throws InvalidArgument when there is none or it may not be
/// executed.
[[nodiscard]] std::string found_program(const std::string& typed, const std::string& folders);

}  // namespace millrace::cli
