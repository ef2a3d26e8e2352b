// What bindings/torch/README.md shows is what is built and run.
#include <fstream>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::testing_torch {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream stream(std::string(MILLRACE_SOURCE_DIR) + "/" + path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

TEST(TorchReadme, ShowsTheExampleThatIsRun) {
  EXPECT_THAT(text_of("bindings/torch/README.md"),
              testing::HasSubstr("```cpp\n" + text_of("examples/torch/digits.cpp") + "```"));
}

}  // namespace
}  // namespace millrace::testing_torch
