// Messages mark the parameters they name; what() has the library's names.
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

std::string capitals(std::string_view name) {
  std::string text(name);
  for (char& letter : text) letter = static_cast<char>(std::toupper(letter));
  return text;
}

TEST(ParameterText, Parameters_TakeTheReadersNames) {
  const ParameterText message =
      named("ranks") + " is " + std::to_string(3) + ", not " + named("group");

  EXPECT_EQ(message.text(), "ranks is 3, not group");
  EXPECT_EQ(message.text(capitals), "RANKS is 3, not GROUP");
}

TEST(ParameterText, PlainText_StaysAsItIs) {
  const ParameterText message = "the file {ranks} names ranks";

  EXPECT_EQ(message.text(capitals), "the file {ranks} names ranks");
}

TEST(InvalidParameter, CopiedAndWrapped_KeepsItsParameters) {
  try {
    try {
      require(false, named("chunks") + " is 0");
    } catch (const InvalidArgument& error) {
      throw InvalidParameter("plan.json: " + parameter_text(error));
    }
  } catch (const InvalidParameter& thrown) {
    const InvalidParameter error(thrown);  // NOLINT: a copy
    EXPECT_STREQ(error.what(), "plan.json: chunks is 0");
    EXPECT_EQ(error.message().text(capitals), "plan.json: CHUNKS is 0");
  }
}

TEST(InvalidParameter, IsTheOnlyRefusalThatNamesParameters) {
  const InvalidArgument error("ranks are people");
  EXPECT_EQ(parameter_text(error).text(capitals), error.what());
}

TEST(NamesParameters, AnyException_NamesTheParameters) {
  class Failed : public Error, public NamesParameters {
   public:
    explicit Failed(const ParameterText& message)
        : Error(message.text()), NamesParameters(message) {}
  };
  try {
    throw Failed(named("steps") + " ran out");
  } catch (const std::exception& error) {
    EXPECT_EQ(parameter_text(error).text(capitals), "STEPS ran out");
    EXPECT_STREQ(error.what(), "steps ran out");
  }
}

}  // namespace
}  // namespace millrace
