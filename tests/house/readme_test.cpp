// The documents against reality: every block of code is run, is an excerpt of an example that a
// test runs, or is at least parsed; every flag, option and link that a document names exists.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "house/document_commands.hpp"
#include "house/documents.hpp"

namespace documents {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kSources = MILLRACE_SOURCE_DIR;

std::string place(const Block& block) {
  return block.file.string() + ":" + std::to_string(block.line);
}

/// Commands that are only parsed: their subcommands and options exist, but CI cannot run them here.
struct OnlyParsed {
  std::string start, reason;
};

const std::vector<OnlyParsed> kOnlyParsed = {
    {"./run ", "builds the project, or runs its tests; .ci/run does both"},
    {"cmake ", "builds the project; tests/consumer installs and uses it"},
    {"apt-get ", "installs packages"},
    {"srun ", "needs SLURM; tests/engines has it"},
    {"mpirun ", "needs MPI; tests/engines has it"},
    {"build/", "programs of a finished build"},
    {"tests/", "sanitizer builds take minutes"},
    {"PYTHONPATH=", "needs the binding; tests/python has it"},
    {"millrace worker ", "needs two machines; tests/cli has two workers on one"},
    {"millrace launch -n 4 -- python3 ", "needs the binding; tests/python has it"},
    {"millrace train --model gpt:layers=4,d=128", "takes minutes"},
    {"millrace import rank0.json.gz", "needs traces of PyTorch; tests/plan has some"},
    {"millrace split layers.json", "needs a profile of 8 layers or more"},
};

bool only_parsed(const std::string& command) {
  return std::ranges::any_of(
      kOnlyParsed, [&](const OnlyParsed& entry) { return command.starts_with(entry.start); });
}

/// `./run train` is `millrace train` of a build that exists.
std::string runnable(const std::string& command) {
  return command.starts_with("./run train") ? "millrace" + command.substr(5) : command;
}

struct Command {
  std::string line;
  Lines expected;
};

/// The commands of a block: `$ command` with its output (console), or one a line (sh).
std::vector<Command> commands_of(const Block& block) {
  std::vector<Command> commands;
  bool continued = false;
  for (std::string line : block.lines) {
    const bool console = block.language == "console";
    if (console && !continued && !line.starts_with("$ ")) {
      EXPECT_FALSE(commands.empty()) << place(block) << " begins with output";
      if (!commands.empty()) commands.back().expected.push_back(line);
      continue;
    }
    if (console) line = line.substr(2);
    const bool more = line.ends_with("\\");
    if (more) line.pop_back();
    if (continued)
      commands.back().line += " " + trimmed(line);
    else if (!line.empty() && line[0] != '#')
      commands.push_back({line, {}});
    continued = more;
  }
  return commands;
}

/// Numbers and hashes of a training depend on the machine; the document says of which it has them.
std::string without_numbers(const std::string& line) {
  static const std::regex kNumber(" *[0-9a-f]{32}| *[0-9]+(\\.[0-9]+)?(e[-+][0-9]+)?");
  return std::regex_replace(line, kNumber, " #");
}

/// Whether `actual` is `expected`, in which a line "..." stands for any number of lines.
bool matches(const Lines& expected, const Lines& actual, std::size_t i = 0, std::size_t j = 0) {
  if (i == expected.size()) return j == actual.size();
  if (expected[i] == "...")
    return matches(expected, actual, i + 1, j) ||
           (j < actual.size() && matches(expected, actual, i, j + 1));
  return j < actual.size() && expected[i] == actual[j] && matches(expected, actual, i + 1, j + 1);
}

void run_commands(const Block& block) {
  const fs::path folder = fs::path(MILLRACE_BINARY_DIR) / "documents";
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (auto& [line, expected] : commands_of(block)) {
    EXPECT_EQ(faults_of(line), "") << place(block) << ": " << line;
    const std::string command = runnable(line);
    if (only_parsed(command)) continue;
    const auto [status, text] = run(command, folder);
    EXPECT_EQ(status, 0) << place(block) << ": " << line << '\n' << text;
    if (block.language == "sh") continue;
    Lines wanted = expected, printed = lines_of(text);
    if (command.starts_with("millrace train"))
      for (Lines* lines : {&wanted, &printed})
        std::ranges::transform(*lines, lines->begin(), without_numbers);
    EXPECT_TRUE(matches(wanted, printed)) << place(block) << ": " << line << '\n' << text;
  }
}

/// A configuration trains one step.
void run_toml(const Block& block) {
  const fs::path file = fs::path(MILLRACE_BINARY_DIR) / "documents.toml";
  std::ofstream stream(file);
  for (const std::string& line : block.lines) stream << line << '\n';
  stream.close();
  const auto [status, text] = run("millrace train --steps 1 --config '" + file.string() + "'");
  EXPECT_EQ(status, 0) << place(block) << '\n' << text;
}

/// Lines without indentation and empty ones: how excerpts are compared.
Lines dense(const Lines& lines) {
  Lines kept;
  for (const std::string& line : lines)
    if (!trimmed(line).empty()) kept.push_back(trimmed(line));
  return kept;
}

/// Whether each part of the block between lines "..." stands in one file below `folder`.
void expect_excerpt(const Block& block, const fs::path& folder, const std::string& suffix) {
  std::vector<Lines> parts(1);
  for (const std::string& line : dense(block.lines))
    if (line == "...")
      parts.emplace_back();
    else
      parts.back().push_back(line);
  const bool found = std::ranges::any_of(
      fs::recursive_directory_iterator(kSources / folder), [&](const fs::directory_entry& entry) {
        if (!entry.path().string().ends_with(suffix)) return false;
        const Lines source = dense(lines_of(contents(fs::relative(entry.path(), kSources))));
        return std::ranges::all_of(parts, [&](const Lines& part) {
          return std::search(source.begin(), source.end(), part.begin(), part.end()) !=
                 source.end();
        });
      });
  EXPECT_TRUE(found) << place(block) << " is no excerpt of a " << suffix << " below " << folder
                     << ", so nothing compiles or runs it";
}

/// Blocks that another test reads, by file and language.
const std::map<std::pair<std::string, std::string>, std::string> kReadElsewhere = {
    {{"scheduler/README.md", "json"}, "tests/plan/readme_files_test.cpp"},
    {{"bindings/python/README.md", "diff"}, "tests/torch/test_scripts.py"},
    {{"bindings/python/README.md", "python"}, "tests/python/test_readme.py"},
};

void check(const Block& block) {
  if (const auto other = kReadElsewhere.find({block.file.string(), block.language});
      other != kReadElsewhere.end()) {
    EXPECT_THAT(contents(other->second), HasSubstr(block.file.string()));
    return;
  }
  if (block.language == "sh" || block.language == "console") return run_commands(block);
  if (block.language == "toml") return run_toml(block);
  if (block.language == "cpp") return expect_excerpt(block, "examples", ".cpp");
  if (block.language == "python") return expect_excerpt(block, "examples/python", ".py");
  if (block.language == "cmake") return expect_excerpt(block, "tests/consumer", "CMakeLists.txt");
  if (block.language == "text") return;  // a diagram or the output of a failure; nothing to run
  ADD_FAILURE() << place(block) << ": no test covers blocks of '" << block.language << "'";
}

TEST(Documents, BlocksAreRun) {
  int blocks = 0;
  for (const fs::path& file : all_documents())
    for (const Block& block : blocks_of(file)) {
      check(block);
      ++blocks;
    }
  EXPECT_GT(blocks, 20);
}

/// Every `code` of the prose, which a line may break, that names a command or an option.
TEST(Documents, CodeInTextNamesWhatExists) {
  const std::regex span("`([^`]+)`"), option("(^|[ \\[])(--[a-z][a-z0-9-]*)");
  std::set<std::string> any;
  for (const std::string& name : subcommands()) any.merge(std::set(options_of(name)));
  for (const char* name : {"ls", "verify", "show", "diff", "export"})
    any.merge(std::set(options_of("checkpoint " + std::string(name))));
  any.merge(std::set<std::string>{"--version", "--signal"});  // the second: of sbatch
  for (const fs::path& file : all_documents()) {
    if (file == "CHANGELOG.md") continue;  // names what is gone
    Lines prose;
    (void)blocks_of(file, &prose);
    std::string paragraph;
    prose.emplace_back();
    for (const std::string& line : prose) {
      if (!line.empty() && line.front() != '|') {
        paragraph += trimmed(line) + " ";
        continue;
      }
      const std::string text = paragraph + line;
      paragraph.clear();
      for (std::sregex_iterator it(text.begin(), text.end(), span), end; it != end; ++it) {
        const std::string code = (*it)[1], start = code.substr(0, code.find(' '));
        const bool of_ours = subcommands().contains(start) && start.size() < code.size();
        EXPECT_EQ(faults_of(of_ours ? "millrace " + code : code), "")
            << file.string() << ": " << code;
        if (of_ours || !code.starts_with("-") || code.ends_with("*")) continue;
        std::smatch found;
        if (std::regex_search(code, found, option)) {
          EXPECT_TRUE(any.contains(found[2]) || contents("run").find(found[2]) != std::string::npos)
              << file.string() << ": " << code;
        }
      }
    }
  }
}

/// Every `path/file.ext` of the prose ends the path of a file of the project.
TEST(Documents, FilesInTextExist) {
  const std::regex file_name("`([\\w./-]+\\.(?:cpp|hpp|py|sh|md|svg))`");
  std::set<std::string> endings;
  for (const auto& entry : fs::recursive_directory_iterator(kSources))
    if (entry.is_regular_file() && !entry.path().string().starts_with(MILLRACE_BINARY_DIR))
      for (fs::path rest = fs::relative(entry.path(), kSources); !rest.empty();) {
        endings.insert(rest.string());
        const fs::path first = *rest.begin();
        rest = rest == first ? fs::path() : rest.lexically_relative(first);
      }
  for (const fs::path& file : all_documents()) {
    if (file == "CHANGELOG.md") continue;
    Lines prose;
    (void)blocks_of(file, &prose);
    for (const std::string& line : prose)
      for (std::sregex_iterator it(line.begin(), line.end(), file_name), end; it != end; ++it) {
        const std::string name = (*it)[1];
        const bool is_example =
            name.find("NAME") != std::string::npos || name.find("train.py") != std::string::npos;
        EXPECT_TRUE(is_example || endings.contains(fs::path(name).lexically_normal().string()))
            << file.string() << ": " << name;
      }
  }
}

std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : trimmed(heading.substr(heading.find_first_not_of('#'))))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (c == ' ')
      anchor += '-';
  return anchor;
}

TEST(Documents, LinksLeadSomewhere) {
  const std::regex link(R"re((?:\]\(|^\[[^\]]+\]: )([^)#: ]*)(#([^) ]*))?(\)|$))re");
  int links = 0;
  for (const fs::path& file : all_documents()) {
    Lines prose;
    (void)blocks_of(file, &prose);
    for (const std::string& line : prose)
      for (std::sregex_iterator it(line.begin(), line.end(), link), end; it != end; ++it) {
        ++links;
        const std::string name = (*it)[1], anchor = (*it)[3];
        const fs::path target =
            name.empty() ? file : (file.parent_path() / name).lexically_normal();
        EXPECT_TRUE(fs::exists(kSources / target)) << file.string() << ": " << line;
        if (anchor.empty()) continue;
        Lines headings;
        (void)blocks_of(target, &headings);
        EXPECT_TRUE(std::ranges::any_of(headings,
                                        [&](const std::string& heading) {
                                          return heading.starts_with("#") &&
                                                 anchor_of(heading) == anchor;
                                        }))
            << file.string() << ": " << line;
      }
  }
  EXPECT_GT(links, 40);
}

std::size_t columns(const std::string& line) {
  return static_cast<std::size_t>(
      std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }));
}

TEST(Documents, GuidesHaveShortLinesAndParagraphs) {
  EXPECT_LE(lines_of(contents("README.md")).size(), 150U);
  for (const fs::path& file : guides()) {
    for (const std::string& line : lines_of(contents(file)))
      EXPECT_LE(columns(line), 100U) << file.string() << ": " << line;
    Lines prose;
    (void)blocks_of(file, &prose);
    int paragraph = 0;
    for (const std::string& line : prose) {
      EXPECT_FALSE(line.starts_with("    ")) << file.string() << ": no fence around: " << line;
      const bool text =
          !line.empty() && std::string("|#-*[123456789 ").find(line[0]) == std::string::npos;
      paragraph = text ? paragraph + 1 : 0;
      EXPECT_LE(paragraph, 4) << file.string() << ": " << line;
    }
  }
}

TEST(Readme, ShowsTheFirstExample) {
  const std::string readme = contents("README.md");
  EXPECT_THAT(readme, HasSubstr("```cpp\n" + contents("examples/first.cpp") + "```"));
  EXPECT_THAT(contents("examples/expected/first.txt"), testing::StrEq("same weights\n"));
}

TEST(Readme, CountsTheSchedules) {
  const std::size_t schedules = lines_of(output_of("list")).size() - 1;
  EXPECT_THAT(contents("README.md"), HasSubstr("| " + std::to_string(schedules) + " schedules "));
}

TEST(Guide, ShowsTheDiagramThatTheCommandDraws) {
  EXPECT_EQ(contents("scheduler/schedules.svg"),
            output_of("compare 1f1b,interleaved,zb-h1,zb-v -p 4 -m 8 --svg"));
}

TEST(SchedulerReadme, NamesEverySchedule) {
  const std::string readme = contents("scheduler/README.md");
  Lines table = lines_of(output_of("list"));
  EXPECT_GE(table.size(), 30U);
  for (std::size_t row = 1; row < table.size(); ++row)
    EXPECT_THAT(readme, HasSubstr("| `" + table[row].substr(0, table[row].find(' ')) + "` |"));
}

}  // namespace
}  // namespace documents
