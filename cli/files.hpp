// Files of the command: read whole, written so that a reader never sees half of one.
#pragma once

#include <string>

namespace millrace::cli {

/// The file's bytes. Throws InvalidArgument naming `option` and the path when it cannot be read.
[[nodiscard]] std::string read_file(const std::string& option, const std::string& path);

/// Writes under a temporary name beside `path`, then renames. Throws InvalidArgument naming
/// `option` and the path when it cannot; then nothing is left. An empty path or "-" is standard
/// output.
void write_file(const std::string& option, const std::string& path, const std::string& text);

}  // namespace millrace::cli
