// The page of a run: points that bounded memory keeps, and what stands on the page.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/training/records.hpp"

namespace millrace {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::HasSubstr;
using testing::Not;

StepRecord record_of(std::int64_t step) {
  StepRecord record;
  record.step = step;
  record.report.loss = {static_cast<double>(step * step), 1, 0, 0};
  record.report.gradient_norm = static_cast<double>(step);
  record.report.samples = step;
  record.seconds = 2;
  record.makespan = 1;
  RankRecord rank;
  rank.times = {.compute = 0.25, .wait = 0.75, .other = 1};
  rank.bubble.drain = 0.75;
  record.ranks.push_back(rank);
  return record;
}

RunHistory history_of(int steps, std::size_t most) {
  RunHistory history(most);
  for (int step = 1; step <= steps; ++step) history.add(record_of(step));
  return history;
}

TEST(RunHistory, HasAPointPerStepWhileThereIsRoom) {
  const RunHistory history = history_of(8, 8);
  const auto points = history.points();

  ASSERT_EQ(points.size(), 8U);
  EXPECT_EQ(history.steps_per_point(), 1);
  EXPECT_EQ(points[2].step, 3);
  EXPECT_EQ(points[2].loss, 9);
  EXPECT_EQ(points[2].samples_per_second, 1.5);
  EXPECT_EQ(points[2].bubble, 0.75);
}

/// Steps 1 to 4, 5 to 8, ... , and 17 alone.
TEST(RunHistory, Points_AreMeansOfNeighbours) {
  for (int steps = 1; steps <= 100; ++steps) {
    const RunHistory history = history_of(steps, 8);
    const auto points = history.points();
    const std::int64_t width = history.steps_per_point();
    ASSERT_LE(points.size(), 8U);
    EXPECT_TRUE(width == 1 || 2 * points.size() > 8U);
    std::int64_t step = 0;
    for (const HistoryPoint& point : points) {
      double squares = 0;
      std::int64_t count = 0;
      for (; count < width && step < steps; ++count) {
        ++step;
        squares += static_cast<double>(step * step);
      }
      EXPECT_EQ(point.step, step);
      EXPECT_THAT(point.loss, DoubleNear(squares / static_cast<double>(count), 1e-9)) << steps;
    }
    EXPECT_EQ(step, steps);
  }
  EXPECT_THROW(RunHistory(7), InvalidArgument);
}

TEST(RunHistory, LeavesOutWhatIsNotFinite) {
  RunHistory history(2);
  StepRecord record = record_of(3);
  record.report.gradient_norm = std::numeric_limits<double>::infinity();
  record.report.skipped = true;
  history.add(record);
  EXPECT_TRUE(std::isnan(history.points()[0].gradient_norm));
  for (const int step : {4, 5}) history.add(record_of(step));

  EXPECT_EQ(history.points()[0].gradient_norm, 4);
  EXPECT_EQ(history.points()[0].skipped, 1);
}

std::string page_of(const RunHistory& history) {
  StepTotals totals;
  totals.add(record_of(1));
  const ParsedProgram parsed = read_csv("0F0,0B0\n1F0,1B0\n");
  const Timeline last{{{{0, 1}, {8, 10}}, {{1, 3}, {3, 7}}}};
  return draw_page({"a <b> & \"c\"", "model </p><script>", history, totals, *parsed.program, last});
}

TEST(RunPage, HasCurvesAndTimeline) {
  const std::string page = page_of(history_of(5, 8));

  EXPECT_THAT(page,
              AllOf(HasSubstr("bottleneck: other, 50.0 % of the ranks' time"),
                    HasSubstr("aria-label=\"loss\""),
                    HasSubstr("aria-label=\"bubble (%)\""),
                    HasSubstr("<td>rank 0</td>"),
                    HasSubstr("title=\"drain 37.5 %\""),
                    HasSubstr("1 step, 1 samples in 2.000 s")));
  EXPECT_THAT(page.substr(page.find("The last step")), HasSubstr("<svg"));
}

TEST(RunPage, NeedsNothingElseAndRunsNothing) {
  const std::string page = page_of(history_of(5, 8));

  EXPECT_THAT(page, AllOf(HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;"), Not(HasSubstr("<script"))));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("src=")), Not(HasSubstr("href="))));
}

TEST(RunPage, NonFiniteValue_BreaksTheLine) {
  RunHistory history;
  for (const int step : {1, 2}) history.add(record_of(step));
  StepRecord record = record_of(3);
  record.report.gradient_norm = std::nan("");
  record.report.skipped = true;
  history.add(record);
  for (const int step : {4, 5}) history.add(record_of(step));
  const std::string page = page_of(history);
  const std::size_t first = page.find("aria-label=\"gradient norm\"");
  const std::string norm = page.substr(first, page.find("</svg>", first) - first);

  std::size_t lines = 0;
  for (std::size_t at = norm.find("<polyline"); at != std::string::npos;
       at = norm.find("<polyline", at + 1))
    ++lines;
  EXPECT_EQ(lines, 2U);
  EXPECT_THAT(norm, HasSubstr("class=\"skipped\""));
}

TEST(RunPage, Restart_IsABandInEveryCurve) {
  RunHistory history;
  StepTotals totals;
  for (int step = 1; step <= 5; ++step) {
    StepRecord record = record_of(step);
    record.restarts = step == 3 ? 2 : 0;
    record.downtime = step == 3 ? 5 : 0;
    history.add(record);
    totals.add(record);
  }
  EXPECT_EQ(history.points()[2].restarts, 2);
  EXPECT_EQ(totals.goodput(), 10.0 / 15);
  const ParsedProgram parsed = read_csv("0F0,0B0\n1F0,1B0\n");
  const std::string page = draw_page({"t", "s", history, totals, *parsed.program, {}});

  EXPECT_THAT(page, HasSubstr(", 2 restarts, 5.000 s of downtime, goodput 66.7 %</p>"));
  std::size_t bands = 0, curves = 0;
  for (std::size_t at = 0; (at = page.find("<rect class=\"restart\"", at + 1)) != page.npos;)
    ++bands;
  for (std::size_t at = 0; (at = page.find("<svg class=\"curve\"", at + 1)) != page.npos;) ++curves;
  EXPECT_EQ(bands, curves);
  EXPECT_THAT(page, HasSubstr("<title>2 restarts before step 3</title>"));
  EXPECT_THAT(prometheus_text(totals, record_of(5)),
              AllOf(HasSubstr("\nmillrace_restarts_total 2\n"),
                    HasSubstr("\nmillrace_downtime_seconds_total 5\n"),
                    HasSubstr("\nmillrace_goodput_ratio 0.66666666666666")));
}

TEST(RunPage, IsAPageBeforeTheFirstStepToo) {
  const RunHistory history;
  const StepTotals totals;
  const Program program;
  const Timeline none;

  EXPECT_THAT(draw_page({"t", "s", history, totals, program, none}), HasSubstr("There is none."));
}

TEST(ReadRecord, ReturnsWhatWasWritten) {
  StepRecord record = record_of(7);
  record.report.skipped = true;
  record.report.loss.sum = std::nan("");
  record.report.learning_rate = 1e-3;
  record.ranks.push_back(record.ranks.front());
  record.ranks.back().rank = Rank{1};
  record.ranks.push_back(record.ranks.front());
  record.ranks.back().copy = 1;
  record.ranks.back().times.save = 0.125;
  for (const StepRecord& read :
       {read_record(json_line(record)), read_record(csv_line(record), csv_columns(record))}) {
    EXPECT_EQ(json_line(read), json_line(record));
    EXPECT_EQ(csv_line(read), csv_line(record));
  }
  for (const char* line : {"", "{}", "{\"step\":1}", "[1]", "no JSON"})
    EXPECT_THROW((void)read_record(line), DataError) << line;
  for (const char* line : {"", "1,2", "a"})
    EXPECT_THROW((void)read_record(line, csv_columns(record)), DataError) << line;
}

}  // namespace
}  // namespace millrace
