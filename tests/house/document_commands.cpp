#include "house/document_commands.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>

#include "house/documents.hpp"

namespace documents {

const std::set<std::string>& options_of(const std::string& subcommand) {
  static std::map<std::string, std::set<std::string>> known;
  if (const auto found = known.find(subcommand); found != known.end()) return found->second;
  static const std::regex kOption(R"((?:^  |,)(--?[a-z][a-z0-9-]*))");
  std::set<std::string>& options = known[subcommand];
  for (const std::string& line : lines_of(output_of(subcommand + " --help")))
    if (line.starts_with("  -"))
      for (std::sregex_iterator it(line.begin(),
                                   line.begin() + std::min<std::ptrdiff_t>(30, std::ssize(line)),
                                   kOption),
           end;
           it != end;
           ++it)
        options.insert((*it)[1]);
  return options;
}

const std::set<std::string>& subcommands() {
  static const std::set<std::string> names = [] {
    std::set<std::string> found;
    bool listed = false;
    for (const std::string& line : lines_of(output_of("--help"))) {
      if (listed && line.starts_with("  ")) found.insert(trimmed(line.substr(0, 28)));
      listed = listed || line.starts_with("Subcommands");
    }
    return found;
  }();
  return names;
}

namespace {

/// What is wrong with the subcommand and the options of `words`, which begin after "millrace".
std::string faults_in(Lines words) {
  if (words.empty() || words[0].starts_with("-")) return "";
  if (!subcommands().contains(words[0])) return words[0] + ": not a subcommand";
  std::string name = words[0];
  if (name == "checkpoint" && words.size() > 1) {
    words.erase(words.begin());
    name += " " + words[0];
  }
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--")
      return i + 1 < words.size() && subcommands().contains(words[i + 1])
                 ? faults_in({words.begin() + static_cast<long>(i) + 1, words.end()})
                 : "";
    static const std::regex kOption("(--?[a-z][a-z0-9-]*)(=.*)?");
    if (std::smatch found; std::regex_match(words[i], found, kOption))
      if (!options_of(name).contains(found[1]))
        return found[1].str() + ": not an option of " + name;
  }
  return "";
}

Lines words_of(const std::string& text) {
  Lines words;
  std::istringstream stream(text);
  for (std::string word; stream >> word && word != "#" && word != "|" && word != "&&";)
    words.push_back(word);
  return words;
}

std::string build_files() {
  static const std::string text = [] {
    std::string all = contents("CMakeLists.txt") + contents("tests/CMakeLists.txt");
    const std::filesystem::path sources = MILLRACE_SOURCE_DIR;
    for (const auto& entry : std::filesystem::directory_iterator(sources / "cmake"))
      all += contents(std::filesystem::relative(entry.path(), sources));
    all += contents("bindings/python/CMakeLists.txt");
    return all;
  }();
  return text;
}

}  // namespace

std::string faults_of(const std::string& command) {
  std::smatch found;
  const std::regex variable("-D(MILLRACE_[A-Z_]+)"), preset("--preset ([a-z-]+)"),
      run_subcommand("^\\./run ([a-z-]+)");
  for (std::sregex_iterator it(command.begin(), command.end(), variable), end; it != end; ++it)
    if (build_files().find((*it)[1]) == std::string::npos)
      return (*it)[1].str() + ": no CMake option";
  if (std::regex_search(command, found, preset) &&
      contents("CMakePresets.json").find("\"" + found[1].str() + "\"") == std::string::npos)
    return found[1].str() + ": not a preset";
  if (std::regex_search(command, found, run_subcommand)) {
    if (contents("run").find("\n  " + found[1].str() + ")") == std::string::npos)
      return found[1].str() + ": not a command of ./run";
    return found[1] == "train" ? faults_in(words_of(command.substr(6))) : "";
  }
  Lines words = words_of(command);
  const auto name = std::find(words.begin(), words.end(), "millrace");
  return name == words.end() ? "" : faults_in(Lines(name + 1, words.end()));
}

}  // namespace documents
