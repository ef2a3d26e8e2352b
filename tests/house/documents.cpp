#include "house/documents.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace documents {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = MILLRACE_SOURCE_DIR;
const fs::path kBuild = MILLRACE_BINARY_DIR;

}  // namespace

std::string contents(const fs::path& name) {
  std::ifstream stream(kRoot / name);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string trimmed(const std::string& line) {
  const auto first = line.find_first_not_of(' '), last = line.find_last_not_of(' ');
  return first == std::string::npos ? "" : line.substr(first, last - first + 1);
}

std::pair<int, std::string> run(const std::string& command, const fs::path& folder) {
  const std::string shell = "cd '" + (folder.empty() ? kBuild : folder).string() +
                            "' && export PATH='" + kBuild.string() + "':\"$PATH\" && { " + command +
                            "\n} 2>&1";
  std::string text;
  std::FILE* pipe = ::popen(shell.c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), count);
  const int status = ::pclose(pipe);
  return {status, text};
}

std::string output_of(const std::string& arguments) {
  const auto [status, text] = run("millrace " + arguments);
  EXPECT_EQ(status, 0) << arguments;
  return text;
}

std::vector<fs::path> guides() {
  std::vector<fs::path> files = {"README.md"};
  for (const auto& entry : fs::directory_iterator(kRoot / "docs"))
    if (entry.path().extension() == ".md") files.push_back(fs::relative(entry.path(), kRoot));
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> all_documents() {
  std::vector<fs::path> files = guides();
  for (const char* name : {"CONTRIBUTING.md", "CHANGELOG.md"})
    if (fs::exists(kRoot / name)) files.emplace_back(name);
  for (const auto& entry : fs::directory_iterator(kRoot)) {
    if (!entry.is_directory() || entry.path() == kBuild.parent_path() ||
        entry.path().filename().string().front() == '.' || entry.path().filename() == "docs")
      continue;
    for (const auto& file : fs::recursive_directory_iterator(entry))
      if (file.path().extension() == ".md") files.push_back(fs::relative(file.path(), kRoot));
  }
  return files;
}

std::vector<Block> blocks_of(const fs::path& file, Lines* prose) {
  std::vector<Block> blocks;
  std::size_t number = 0;
  bool inside = false;
  for (const std::string& line : lines_of(contents(file))) {
    ++number;
    const bool fence = line.starts_with("```");
    if (fence && !inside) blocks.push_back({file, number, line.substr(3), {}});
    if (!fence && inside) blocks.back().lines.push_back(line);
    if (prose != nullptr) prose->push_back(inside || fence ? "" : line);
    if (fence) inside = !inside;
  }
  EXPECT_FALSE(inside) << file << ": a block does not end";
  return blocks;
}

}  // namespace documents
