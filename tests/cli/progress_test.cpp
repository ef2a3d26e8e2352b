// What a command that takes long writes while it works, second by second.
#include "cli/plan/progress.hpp"

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command_test.hpp"
#include "cli/train/progress.hpp"

namespace millrace::test {

namespace {

using cli::PlanLine;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

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

/// What a training of 3 epochs of 10 steps writes, each of which takes `seconds`.
std::string trained(bool moves, double seconds, int first_step = 0, std::size_t columns = 0) {
  std::ostringstream stream;
  double now = 100;
  cli::Progress progress(stream,
                         {.moves = moves,
                          .columns = columns,
                          .epochs = 3,
                          .batches_per_epoch = 10,
                          .steps = 30,
                          .now = [&] { return now; }});
  for (int step = first_step; step < 30; ++step) {
    now += seconds;
    StepReport report;
    report.global_step = step + 1;
    report.epoch = step / 10;
    report.batch = step % 10;
    report.loss = {.sum = 2, .weight = 1};
    progress.step(report, 0.25);
    if (columns > 0 && step % 10 == 4)
      progress.validation({.score = {.loss = {.sum = 2, .weight = 1, .correct = 1, .evaluated = 4}},
                           .is_best = true},
                          false);
    if (step % 10 == 9) progress.epoch({.epoch = step / 10, .loss = {.sum = 3, .weight = 1}});
  }
  return stream.str();
}

std::vector<std::string> lines_of(const std::string& text, char end) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line, end);) lines.push_back(line);
  return lines;
}

TEST(TrainProgress, File_HasALinePerEpochOrMinute) {
  EXPECT_THAT(
      lines_of(trained(false, 6), '\n'),
      ElementsAre(AllOf(StartsWith("epoch 1/3  step 10  loss 3.0000"), EndsWith("bubble 25.0 %")),
                  AllOf(StartsWith("epoch 2/3"), EndsWith("bubble 25.0 %")),
                  AllOf(StartsWith("epoch 3/3"), EndsWith("bubble 25.0 %"))));
  EXPECT_THAT(lines_of(trained(false, 3), '\n'),
              ElementsAre(StartsWith("epoch 1/3"), StartsWith("epoch 3/3")));
  EXPECT_THAT(lines_of(trained(false, 6.5), '\n'), SizeIs(3));
}

TEST(TrainProgress, Terminal_HasOneLineWithTheTimeLeft) {
  const auto lines = lines_of(trained(true, 300), '\r');
  ASSERT_EQ(lines.size(), 32U);
  EXPECT_THAT(lines[1], AllOf(StartsWith("epoch 1/3, 2 h 25 min left  step 1  loss 2.0000")));
  EXPECT_THAT(lines[30], HasSubstr(", 0 s left  step 30"));
  EXPECT_THAT(lines[31], AllOf(StartsWith("epoch 3/3  step 30  loss 3.0000"), EndsWith(" \n")));
}

TEST(TrainProgress, File_ContinuesAtHundredColumns) {
  const auto lines = lines_of(trained(false, 6, 0, 1), '\n');
  ASSERT_EQ(lines.size(), 6U);
  for (std::size_t i = 0; i < lines.size(); i += 2) {
    EXPECT_THAT(lines[i], AllOf(StartsWith("epoch "), EndsWith("bubble 25.0 %")));
    EXPECT_LE(lines[i].size(), 100U);
    EXPECT_EQ(lines[i + 1], "  validation loss 2.0000  accuracy 25.00 %  best");
  }
}

TEST(TrainProgress, Terminal_ShowsValidationAndFitsItsWidth) {
  for (const std::size_t columns : {60U, 80U, 120U, 200U}) {
    const std::string text = trained(true, 300, 0, columns);
    for (const std::string& line : lines_of(text, '\r'))
      for (const std::string& part : lines_of(line, '\n')) EXPECT_LT(part.size(), columns) << part;
  }
  const auto lines = lines_of(trained(true, 300, 0, 100), '\r');
  EXPECT_THAT(lines[9], HasSubstr("  loss 2.0000  validation loss 2.0000  accuracy 25.00 %  best"));
  EXPECT_THAT(lines[9], Not(HasSubstr("norm")));
  EXPECT_THAT(lines.back(), EndsWith("\n  validation loss 2.0000  accuracy 25.00 %  best\n"));
}

TEST(TrainProgress, ResumedRun_MeasuresItsOwnSteps) {
  EXPECT_THAT(lines_of(trained(true, 60, 20), '\r')[1], HasSubstr(", 9 min 00 s left"));
}

}  // namespace

}  // namespace millrace::test
