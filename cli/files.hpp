// Files of the command: read whole, written so that a reader never sees half of one.
#pragma once

#include <string>

namespace millrace::cli {

/// The file's bytes. Throws InvalidArgument naming `option` and the path when it cannot be read.
[[nodiscard]] std::string read_file(const std::string& option, const std::string& path);

/// Throws InvalidArgument naming `option` and the path when write_file could not write it. Leaves
/// nothing behind: for work that takes long before its file is written.
void require_writable(const std::string& option, const std::string& path);

/// Writes under a temporary name beside `path`, then renames. Throws InvalidArgument naming
/// `option` and the path when it cannot; then nothing is left. What is no plain file, such as a
/// pipe or /dev/stdout, is written in place. An empty path or "-" is standard output.
void write_file(const std::string& option, const std::string& path, const std::string& text);

}  // namespace millrace::cli
