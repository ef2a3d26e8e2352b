// The house rules, read from the files themselves: who may include whom, no foreign type in a
// public header, headers that compile alone, no junk drawer, no path of one machine, one place that
// knows the neighbours of a stage.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

const fs::path kSource = MILLRACE_SOURCE_DIR;
const fs::path kBinary = MILLRACE_BINARY_DIR;
constexpr auto kFolders = std::to_array<const char*>({"include",
                                                      "core",
                                                      "scheduler",
                                                      "stages",
                                                      "transport",
                                                      "training",
                                                      "cli",
                                                      "bindings",
                                                      "tests",
                                                      "bench",
                                                      "examples"});

std::vector<fs::path> sources_under(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".hpp" || entry.path().extension() == ".cpp")
      files.push_back(entry.path());
  return files;
}

std::vector<std::string> includes_of(const fs::path& file) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*[<"]([^">]+)[">])re");
  std::vector<std::string> names;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);)
    if (std::smatch match; std::regex_search(line, match, kInclude)) names.push_back(match[1]);
  return names;
}

/// The room a path (from include/millrace or from the source root) belongs to; empty: none.
std::string room_of(const std::string& path) {
  for (const char* room :
       {"core", "scheduler/plan", "scheduler/run", "stages", "transport", "training"})
    if (path.rfind(std::string(room) + "/", 0) == 0) return room;
  if (path == "scheduler/plan.hpp") return "scheduler/plan";
  return "";
}

std::string room_of_include(const std::string& include) {
  const std::string prefix = "millrace/";
  if (include.rfind(prefix, 0) == 0) return room_of(include.substr(prefix.size()));
  if (include.rfind("plan/", 0) == 0 || include.rfind("run/", 0) == 0)
    return room_of("scheduler/" + include);
  return room_of(include);
}

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {"core"}},
    {"scheduler/plan", {"core", "scheduler/plan"}},
    {"stages", {"core", "stages"}},
    {"transport", {"core", "transport"}},
    {"scheduler/run", {"core", "scheduler/plan", "stages", "transport", "scheduler/run"}},
    {"training", {"core", "scheduler/plan", "stages", "transport", "scheduler/run", "training"}},
};

TEST(Rooms, IncludeOnlyTheRoomsBelowThem) {
  int checked = 0;
  for (const auto& [room, allowed] : kMayInclude)
    for (const fs::path& folder : {kSource / "include/millrace" / room, kSource / room})
      for (const fs::path& file : sources_under(folder))
        for (const std::string& include : includes_of(file)) {
          const std::string target = room_of_include(include);
          if (target.empty()) continue;
          ++checked;
          EXPECT_TRUE(allowed.contains(target))
              << fs::relative(file, kSource) << " of room " << room << " includes " << include
              << " of room " << target;
        }
  EXPECT_GT(checked, 200);
}

TEST(Rooms, PublicHeadersNameNoForeignLibrary) {
  const std::regex foreign("^(Eigen|tbb|oneapi|zmq|mpi|nlohmann|fmt|CLI|xxhash|zlib|spdlog)");
  for (const fs::path& file : sources_under(kSource / "include"))
    for (const std::string& include : includes_of(file))
      EXPECT_FALSE(std::regex_search(include, foreign))
          << fs::relative(file, kSource) << " includes " << include;
}

TEST(Rooms, PlanAndCoreHeaders_UseStandardLibraryOnly) {
  for (const char* room : {"core", "scheduler/plan"})
    for (const fs::path& file : sources_under(kSource / "include/millrace" / room))
      for (const std::string& include : includes_of(file))
        EXPECT_TRUE(include.rfind("millrace/", 0) == 0 || include.find('.') == std::string::npos)
            << fs::relative(file, kSource) << " includes " << include;
}

TEST(Rooms, NothingIsCalledUtilsCommonHelpersOrMisc) {
  const std::regex junk("(^|/)(utils?|common|helpers?|misc)(/|\\.|_)");
  for (const char* folder : kFolders)
    for (const fs::path& file : sources_under(kSource / folder)) {
      const std::string name = fs::relative(file, kSource).string();
      EXPECT_FALSE(std::regex_search(name, junk)) << name;
    }
}

/// A source whose header states the purpose needs no opening comment of its own.
bool has_header(const fs::path& file) {
  const std::vector<std::string> includes = includes_of(file);
  return file.extension() == ".cpp" && !includes.empty() &&
         fs::path(includes.front()).extension() == ".hpp";
}

TEST(Files, OpenWithTheirPurpose) {
  for (const char* folder : kFolders)
    for (const fs::path& file : sources_under(kSource / folder)) {
      std::ifstream stream(file);
      std::string line;
      std::getline(stream, line);
      EXPECT_TRUE(line.rfind("//", 0) == 0 || has_header(file))
          << fs::relative(file, kSource) << " opens with: " << line;
      EXPECT_FALSE(line.rfind("// See ", 0) == 0)
          << fs::relative(file, kSource) << " opens with: " << line;
    }
}

/// The one file that reads the environment: what a launcher says of a program's place.
const fs::path kReadsTheEnvironment = kSource / "transport/launch/join.cpp";

TEST(Library, NeitherPrintsNorReadsTheEnvironmentNorAborts) {
  const std::regex reads(R"(\bgetenv\s*\(|\benviron\b)");
  const std::regex banned(
      R"(std::cout|std::cerr|\bprintf\s*\(|std::abort|\bexit\s*\(|system_clock|random_device|\bvolatile\b|thread_local)");
  int places = 0;
  for (const char* folder : {"include", "scheduler", "stages", "transport", "training"})
    for (const fs::path& file : sources_under(kSource / folder)) {
      std::ifstream stream(file);
      int number = 0;
      for (std::string line; std::getline(stream, line);) {
        ++number;
        const std::string code = line.substr(0, line.find("//"));
        const bool reading = std::regex_search(code, reads);
        places += reading ? 1 : 0;
        EXPECT_FALSE(std::regex_search(code, banned) || (reading && file != kReadsTheEnvironment))
            << fs::relative(file, kSource) << ":" << number << ": " << line;
      }
    }
  EXPECT_EQ(places, 1);
}

/// The string literals of a source, one a line; comments and character literals left out.
std::string literals_of(const fs::path& file) {
  static const std::regex kToken(
      R"re(//[^\n]*|/\*[^]*?\*/|'(?:[^'\\\n]|\\.)'|"((?:[^"\\\n]|\\.)*)")re");
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  const std::string source = text.str();
  std::string literals;
  for (std::sregex_iterator it(source.begin(), source.end(), kToken), end; it != end; ++it)
    literals += (*it)[1].str() + "\n";
  return literals;
}

TEST(Rooms, LeaveTheSpellingOfFlagsToTheCommand) {
  const std::regex flag(R"re((^|[\s(`'])-(-[a-z][a-z-]+|[a-z])(?![\w-]))re", std::regex::multiline);
  for (const char* folder : {"include", "scheduler", "stages", "training", "transport"})
    for (const fs::path& file : sources_under(kSource / folder)) {
      std::smatch found;
      const std::string literals = literals_of(file);
      EXPECT_FALSE(std::regex_search(literals, found, flag))
          << fs::relative(file, kSource) << " spells " << found.str()
          << "; name the parameter instead: named(\"ranks\")";
    }
}

TEST(Rooms, KnowTheNetworkLibraryInItsBackendAlone) {
  for (const fs::path& file : sources_under(kSource / "transport"))
    for (const std::string& include : includes_of(file))
      EXPECT_TRUE(!include.starts_with("zmq") || file.parent_path().filename() == "zeromq")
          << fs::relative(file, kSource);
}

TEST(Rooms, KnowMpiInItsBackendAlone) {
  for (const char* folder : {"include", "scheduler", "stages", "transport", "training", "cli"})
    for (const fs::path& file : sources_under(kSource / folder))
      for (const std::string& include : includes_of(file))
        EXPECT_TRUE(include != "mpi.h" || file.parent_path() == kSource / "transport/mpi")
            << fs::relative(file, kSource);
}

/// What a backend makes its connections of stays in it: addresses are opaque to all others.
TEST(Rooms, NameABackendOnlyWhereItIsChosen) {
  const std::regex named("ZeroMq|zeromq::|CurveKeys|CurveRing|transport/zeromq");
  for (const char* folder : {"include", "scheduler", "stages", "transport", "training"})
    for (const fs::path& file : sources_under(kSource / folder)) {
      const std::string name = fs::relative(file, kSource).string();
      if (name.starts_with("transport/zeromq/") || name.starts_with("transport/launch/") ||
          name == "include/millrace/transport/zeromq.hpp")
        continue;
      std::ifstream stream(file);
      for (std::string line; std::getline(stream, line);)
        EXPECT_FALSE(std::regex_search(line, named)) << name << ": " << line;
    }
}

TEST(Rooms, TransportLayers_IncludeUpwardOnly) {
  const std::vector<std::string> layers = {
      "mailbox", "liveness", "wire", "link", "rendezvous", "shared_memory"};
  const auto level_of = [&](const std::string& folder) {
    const auto level = std::find(layers.begin(), layers.end(), folder) - layers.begin();
    return folder == "launch" ? level + 1 : level;  // last but for it: a backend
  };
  for (const fs::path& file : sources_under(kSource / "transport"))
    for (const std::string& include : includes_of(file)) {
      const fs::path other = fs::path(include).parent_path();
      if (other.parent_path() != "transport") continue;
      const std::string mine = file.parent_path().filename(), theirs = other.filename();
      const bool top = mine == "transport";
      EXPECT_TRUE(mine == theirs || (!top && level_of(theirs) < level_of(mine)))
          << fs::relative(file, kSource) << " includes " << include;
    }
}

TEST(Rooms, GiveEveryBackendTheSameFiles) {
  int backends = 0;
  for (const auto& folder : fs::directory_iterator(kSource / "transport")) {
    if (!fs::exists(folder.path() / "listener.cpp")) continue;
    ++backends;
    for (const char* file : {"backend.hpp", "rendezvous_channel.cpp"})
      EXPECT_TRUE(fs::exists(folder.path() / file))
          << folder.path().filename() << " has no " << file;
  }
  EXPECT_GE(backends, 2);
}

/// Who gives to whom is StageGraph's to say; the neighbour's number is counted nowhere else.
TEST(Rooms, LeaveTheNeighboursOfAStageToTheStageGraph) {
  const std::regex counted(R"re(stage(\.value|_number)? ?[-+] ?\(?(1\b|[a-z]+ \? 1))re");
  for (const char* folder : {"include", "scheduler", "transport", "training"})
    for (const fs::path& file : sources_under(kSource / folder)) {
      if (file.stem() == "stage_graph") continue;
      std::ifstream stream(file);
      for (std::string line; std::getline(stream, line);)
        EXPECT_FALSE(std::regex_search(line, counted))
            << fs::relative(file, kSource) << " counts stages: " << line;
    }
}

/// Private headers of the production code, by the path from the source root.
std::vector<fs::path> private_headers() {
  std::vector<fs::path> headers;
  for (const char* folder :
       {"core", "scheduler", "stages", "transport", "training", "cli", "bindings"})
    for (const fs::path& file : sources_under(kSource / folder))
      if (file.extension() == ".hpp" && file.string().find("/include/") == std::string::npos)
        headers.push_back(fs::relative(file, kSource));
  return headers;
}

/// Public headers, and private ones that no source of the same name opens with.
TEST(Headers, CompileAlone) {
  const fs::path folder = kBinary / "headers_alone";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const auto stub = [&](const std::string& name) {
    const std::string file = std::regex_replace(name, std::regex("[/.]"), "_") + ".cpp";
    std::ofstream(folder / file) << "#include \"" << name << "\"\n";
  };
  for (const fs::path& file : sources_under(kSource / "include"))
    stub(fs::relative(file, kSource / "include"));
  for (const fs::path& file : private_headers())
    if (!file.string().starts_with("bindings/") &&
        !fs::exists((kSource / file).replace_extension(".cpp")))
      stub(file);
  const std::string root = kSource.string();
  const std::string compile =
      "xargs -P 2 -n 1 c++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -DMILLRACE_ONEDNN=0 -I'" +
      root + "/include' -I'" + root + "' -I'" + root + "/scheduler'";
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the test has one thread
  EXPECT_EQ(std::system(("ls '" + folder.string() + "'/*.cpp | " + compile).c_str()), 0);
}

std::size_t lines_of(const fs::path& file) {
  std::ifstream stream(file);
  return static_cast<std::size_t>(
      std::count(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>(), '\n'));
}

/// The files that include each header, by the last two parts of its path.
std::map<std::string, std::set<fs::path>> users_by_header() {
  std::map<std::string, std::set<fs::path>> users;
  for (const char* folder : kFolders)
    for (const fs::path& file : sources_under(kSource / folder))
      for (const std::string& include : includes_of(file)) {
        const fs::path header(include);
        users[(header.parent_path().filename() / header.filename()).string()].insert(
            fs::relative(file, kSource));
      }
  return users;
}

/// A private header has two users or a test. One with a single user is folded into it, where the
/// header, its source and the user together have at most 350 lines.
TEST(Headers, PrivateOnes_HaveTwoUsers) {
  const auto users = users_by_header();
  std::vector<std::string> lonely;
  for (const fs::path& header : private_headers()) {
    const fs::path source = fs::path(header).replace_extension(".cpp");
    const auto found = users.find((header.parent_path().filename() / header.filename()).string());
    std::set<fs::path> others = found == users.end() ? std::set<fs::path>{} : found->second;
    others.erase(source);
    if (others.size() != 1 || others.begin()->string().starts_with("tests/")) continue;
    std::size_t lines = lines_of(kSource / header) + lines_of(kSource / *others.begin());
    if (fs::exists(kSource / source)) lines += lines_of(kSource / source);
    if (lines <= 350) lonely.push_back(header.string() + ", of " + others.begin()->string());
  }
  EXPECT_TRUE(lonely.empty()) << testing::PrintToString(lonely);
}

}  // namespace
