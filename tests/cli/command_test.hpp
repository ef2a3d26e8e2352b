// The fixture of tests that run subcommands with files.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"

namespace millrace::test {

/// The object at the end of a text that progress may precede.
inline nlohmann::json json_in(const std::string& text) {
  return nlohmann::json::parse(text.substr(text.find("{\n")));
}

/// One line that says `why`, and that exit code.
inline void expect_refused(const std::string& line, int code, const char* why) {
  const Ran ran = command(line);
  EXPECT_EQ(ran.code, code) << line;
  EXPECT_THAT(ran.text, testing::HasSubstr(why)) << line;
  EXPECT_EQ(std::count(ran.text.begin(), ran.text.end(), '\n'), 1) << ran.text;
}

/// A folder of this test's own, removed at its end.
class CommandTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }

  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  [[nodiscard]] std::size_t files() const {
    std::size_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found += entry.is_regular_file() ? 1U : 0U;
    return found;
  }

 private:
  std::filesystem::path folder_ = std::filesystem::temp_directory_path() /
                                  ("millrace_verbs_" + std::to_string(::getpid()) + "_" +
                                   testing::UnitTest::GetInstance()->current_test_info()->name());
};

}  // namespace millrace::test
