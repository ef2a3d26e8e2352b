// Plain English: retired words and long test names become fewer, never more.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "house/documents.hpp"

namespace documents {
namespace {

namespace fs = std::filesystem;

/// The files that people read, by suffix; without data, recorded output and old names.
std::vector<fs::path> written_files() {
  static const std::vector<std::string> kSuffixes = {".md", ".cpp", ".hpp", ".py", ".sh"};
  static const std::vector<std::string> kLeftOut = {
      "data/", "tests/golden/", "tests/reference/", "CHANGELOG.md"};
  const fs::path sources = MILLRACE_SOURCE_DIR;
  std::vector<fs::path> files;
  for (auto entry = fs::recursive_directory_iterator(sources); entry != fs::end(entry); ++entry) {
    const fs::path& path = entry->path();
    const std::string name = fs::relative(path, sources).string();
    const bool hidden = path.filename().string().front() == '.';
    if (entry->is_directory() && (hidden || name == "build" || name == "shared")) {
      entry.disable_recursion_pending();
      continue;
    }
    if (std::ranges::count(kSuffixes, path.extension().string()) != 0 &&
        std::ranges::none_of(kLeftOut,
                             [&](const std::string& folder) { return name.starts_with(folder); }))
      files.emplace_back(name);
  }
  return files;
}

/// A row of retired_words.txt: hits allowed in documents (*.md) and in code, and the pattern.
struct Retired {
  int documents = 0, code = 0;
  std::string pattern;
};

std::vector<Retired> retired_words() {
  std::vector<Retired> rows;
  for (const std::string& line : lines_of(contents("tests/house/retired_words.txt"))) {
    if (line.empty() || line.front() == '#') continue;
    Retired row;
    std::istringstream stream(line);
    stream >> row.documents >> row.code >> std::ws;
    std::getline(stream, row.pattern);
    rows.push_back(row);
  }
  return rows;
}

/// Hits of a pattern in a file of the build folder, in any case. grep takes a tenth of std::regex's
/// time.
int hits(const std::string& pattern, const std::string& file) {
  return std::stoi(run("LC_ALL=C grep -oiE '" + pattern + "' " + file + " | wc -l").second);
}

TEST(Wording, RetiredWords_OnlyFall) {
  const fs::path build = MILLRACE_BINARY_DIR;
  std::ofstream documents(build / "written_documents.txt"), code(build / "written_code.txt");
  for (const fs::path& file : written_files())
    (file.extension() == ".md" ? documents : code) << contents(file);
  documents.close();
  code.close();
  for (const Retired& row : retired_words()) {
    EXPECT_LE(hits(row.pattern, "written_documents.txt"), row.documents)
        << "in *.md: " << row.pattern;
    EXPECT_LE(hits(row.pattern, "written_code.txt"), row.code) << "in code: " << row.pattern;
  }
}

/// Words of CamelCase with underscores; "ZeroMQ" has two.
int words_in(const std::string& name) {
  int words = 0;
  bool after_capital = false;
  for (const char c : name) {
    const bool capital = c >= 'A' && c <= 'Z';
    words += capital && !after_capital ? 1 : 0;
    after_capital = capital;
  }
  return words;
}

/// A name is Subject.Condition_Outcome.
TEST(Wording, TestNames_HaveAtMostTenWords) {
  const std::regex name(R"(TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\))");
  for (const fs::path& file : written_files()) {
    if (file.extension() != ".cpp") continue;
    const std::string text = contents(file);
    for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it) {
      const std::string subject = (*it)[1], claim = (*it)[2];
      EXPECT_LE(words_in(subject + '_' + claim), 10) << subject << "." << claim;
    }
  }
}

}  // namespace
}  // namespace documents
