// Files of the command: read whole, written so that a reader never sees half of one.
#pragma once

#include <string>
#include <vector>

#include "millrace/core/whole_file.hpp"

namespace millrace::cli {

/// The file's bytes, at most `limit`. Throws as read_whole does, naming `option` and the path.
[[nodiscard]] std::string read_file(const std::string& option,
                                    const std::string& path,
                                    const FileLimit& limit);

/// Throws InvalidArgument naming `option` and the path when write_file could not write it. Leaves
/// nothing: for work that takes long before its file is written.
void require_writable(const std::string& option, const std::string& path);

/// A file that the user asked for with `option`. An empty path or "-" is standard output.
struct OutputFile {
  std::string option, path, text;
};

/// Writes each file under a temporary name in its folder, then renames it. A pipe, or /dev/stdout,
/// is written in place. Writes all files that it can, then throws Error with option and path of the
/// others, and leaves no part of them.
void write_files(const std::vector<OutputFile>& files);

}  // namespace millrace::cli
