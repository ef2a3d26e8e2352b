// README.md against reality: the program is the example's file, its output the example's, the
// picture what the command draws, and every schedule stands in the scheduler's table.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using testing::HasSubstr;

std::string contents(const std::string& name) {
  std::ifstream stream(std::string(MILLRACE_SOURCE_DIR) + "/" + name);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string output_of(const std::string& arguments) {
  const std::string command = std::string(MILLRACE_BINARY_DIR) + "/millrace " + arguments;
  std::string text;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), count);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return text;
}

TEST(Readme, ShowsTheFirstExampleAndWhatItPrints) {
  const std::string readme = contents("README.md");
  EXPECT_THAT(readme, HasSubstr("```cpp\n" + contents("examples/first.cpp") + "```"));
  EXPECT_THAT(readme, HasSubstr("```\n" + contents("examples/expected/first.txt") + "```"));
}

TEST(Readme, ShowsItsFirstProgramWithinThirtyLines) {
  const std::string readme = contents("README.md");
  const auto end =
      readme.find(contents("examples/first.cpp")) + contents("examples/first.cpp").size();
  EXPECT_LE(std::ranges::count(readme.substr(0, end), '\n'), 30);
}

TEST(Readme, OpensWithThePictureTheCommandDraws) {
  EXPECT_THAT(contents("README.md"), HasSubstr("```\n" + output_of("show 1f1b -p 4 -m 8") + "```"));
}

TEST(Readme, ShowsThePictureOfSeveralSchedulesThatTheCommandDraws) {
  const std::string readme = contents("README.md"), picture = "scheduler/schedules.svg";
  ASSERT_THAT(readme, HasSubstr("](" + picture + ")"));
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(readme, found, std::regex("\\*`millrace (compare .*--svg) " + picture)));
  EXPECT_EQ(contents(picture), output_of(found[1].str()));
}

TEST(Readme, OfTheSchedulerNamesEverySchedule) {
  const std::string readme = contents("scheduler/README.md");
  std::istringstream table(output_of("list"));
  std::string line;
  std::getline(table, line);  // the heading
  int rows = 0;
  while (std::getline(table, line)) {
    const std::string name = line.substr(0, line.find(' '));
    EXPECT_THAT(readme, HasSubstr("| `" + name + "` |"));
    ++rows;
  }
  EXPECT_GE(rows, 29);
}

}  // namespace
