// What a plan subcommand that takes long writes while it works, second by second.
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command_test.hpp"
#include "cli/plan/progress.hpp"

namespace millrace::test {

namespace {

using cli::PlanLine;

std::string written(bool moves, const std::vector<double>& seconds) {
  std::ostringstream stream;
  PlanLine line(stream, moves, 1);
  for (const double now : seconds) line.show(now, "simulate v-zb", "making the schedule");
  line.clear();
  return stream.str();
}

TEST(PlanProgress, SaysNothingInTheFirstSecond) {
  EXPECT_EQ(written(true, {0, 0.5, 0.99}), "");
  EXPECT_EQ(written(false, {0, 0.5, 0.99}), "");
}

TEST(PlanProgress, NoTerminal_WritesLessAndLess) {
  EXPECT_EQ(written(false, {1, 1.5, 1.99, 2, 3, 3.9, 4.5, 8, 9, 17}),
            "millrace: simulate v-zb, 1 s: making the schedule\n"
            "millrace: simulate v-zb, 2 s: making the schedule\n"
            "millrace: simulate v-zb, 4 s: making the schedule\n"
            "millrace: simulate v-zb, 9 s: making the schedule\n");
}

TEST(PlanProgress, Terminal_HasOneLineThatIsErased) {
  std::ostringstream stream;
  PlanLine line(stream, true, 1);

  line.show(1, "search", "candidate 9");
  line.show(1.1, "search", "candidate 10");
  line.show(1.3, "search", "end");
  line.clear();
  line.clear();

  EXPECT_EQ(stream.str(),
            "\rmillrace: search, 1 s: candidate 9"
            "\rmillrace: search, 1 s: end        "
            "\r                          \r");
}

std::string with_progress(const std::string& seconds, const std::string& arguments) {
  ::setenv("MILLRACE_PROGRESS", seconds.c_str(), 1);
  const Ran ran = command(arguments);
  ::unsetenv("MILLRACE_PROGRESS");
  return ran.text;
}

TEST(PlanProgress, EverySubcommand_ReportsProgress) {
  for (const std::string subcommand :
       {"simulate 1f1b", "verify 1f1b", "show 1f1b", "compare 1f1b,gpipe", "search -p 2 -m 2"}) {
    const std::string opening = "millrace: " + subcommand.substr(0, subcommand.find(' '));

    EXPECT_EQ(with_progress("0", subcommand).rfind(opening, 0), 0U) << subcommand;
    EXPECT_EQ(with_progress("never", subcommand).find("millrace: "), std::string::npos)
        << subcommand;
  }
}

TEST(PlanProgress, RefusesANumberOfSecondsThatIsNone) {
  EXPECT_THAT(with_progress("soon", "simulate 1f1b"),
              testing::HasSubstr("MILLRACE_PROGRESS soon: must be a number"));
}

}  // namespace

}  // namespace millrace::test
