// The documents of the project, their blocks of code, and commands run by this build.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace documents {

using Lines = std::vector<std::string>;

[[nodiscard]] std::string contents(const std::filesystem::path& name);
[[nodiscard]] Lines lines_of(const std::string& text);
[[nodiscard]] std::string trimmed(const std::string& line);

/// Exit status and output of a shell command in `folder` (empty: that of the build); `millrace` is
/// that of this build.
[[nodiscard]] std::pair<int, std::string> run(const std::string& command,
                                              const std::filesystem::path& folder = {});

/// Output of the command, which must succeed.
[[nodiscard]] std::string output_of(const std::string& arguments);

/// README.md and docs/: short lines and paragraphs, every block run.
[[nodiscard]] std::vector<std::filesystem::path> guides();

/// The guides and every other *.md of the project.
[[nodiscard]] std::vector<std::filesystem::path> all_documents();

struct Block {
  std::filesystem::path file;
  std::size_t line = 0;
  std::string language;
  Lines lines;
};

/// The fenced blocks of a document; `prose` gets the other lines, empty ones in place of blocks.
[[nodiscard]] std::vector<Block> blocks_of(const std::filesystem::path& file,
                                           Lines* prose = nullptr);

}  // namespace documents
