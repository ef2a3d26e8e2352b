// Sums over records, and which cause they name as the one that costs most.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/training/records.hpp"

namespace millrace {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

/// One rank that computes for 4 of 10 seconds and is idle for 5, by the cause given.
StepRecord record_with(double Bubble::*cause) {
  StepRecord record;
  record.seconds = 10;
  record.makespan = 9;
  record.report.samples = 3;
  RankRecord rank;
  rank.times = {.compute = 4, .wait = 5, .optimizer = 1};
  rank.bubble.*cause = 5;
  record.ranks.push_back(rank);
  return record;
}

TEST(StepTotals, AddUpStepsAndRanks) {
  StepTotals totals;
  StepRecord record = record_with(&Bubble::drain);
  totals.add(record);
  record.report.skipped = true;
  totals.add(record);

  EXPECT_EQ(totals.steps(), 2);
  EXPECT_EQ(totals.skipped(), 1);
  EXPECT_EQ(totals.samples(), 6);
  EXPECT_EQ(totals.seconds(), 20);
  ASSERT_EQ(totals.ranks().size(), 1U);
  EXPECT_EQ(totals.ranks()[0].times.compute, 8);
  EXPECT_EQ(totals.ranks()[0].bubble.drain, 10);
}

TEST(Bottleneck, IsNamedByItsCause) {
  for (const auto& [cause, name] : {std::pair(&Bubble::warm_up, "warm-up and drain, 50.0 %"),
                                    {&Bubble::drain, "warm-up and drain, 50.0 %"},
                                    {&Bubble::imbalance, "imbalance, 50.0 %"},
                                    {&Bubble::dependency, "dependency, 50.0 %"},
                                    {&Bubble::delay, "delay, 50.0 %"}}) {
    StepTotals totals;
    totals.add(record_with(cause));
    EXPECT_THAT(bottleneck(totals), StartsWith(std::string("bottleneck: ") + name));
  }
}

TEST(Bottleneck, IsComputeWhereRanksDoLittleElse) {
  StepRecord record = record_with(&Bubble::drain);
  record.ranks[0].times = {.compute = 9, .wait = 1};
  record.ranks[0].bubble.drain = 1;
  StepTotals totals;
  totals.add(record);

  EXPECT_THAT(bottleneck(totals), StartsWith("bottleneck: compute, 90.0 %"));
  EXPECT_THAT(bottleneck(StepTotals()), HasSubstr("no step has run"));
}

TEST(TimeShares, AddUpToOneTheLargestCauseFirst) {
  StepRecord record = record_with(&Bubble::imbalance);
  record.ranks[0].times.data = 7;
  record.ranks[0].times.save = 3;
  StepTotals totals;
  totals.add(record);
  const std::vector<TimeShare> shares = time_shares(totals);

  EXPECT_EQ(shares[0].cause, "compute");
  EXPECT_EQ(shares[1].cause, "data");
  EXPECT_EQ(shares[2].cause, "imbalance");
  EXPECT_EQ(shares[3].cause, "save");
  EXPECT_THAT(shares[1].share, DoubleNear(7.0 / 20, 1e-12));
  double sum = 0;
  for (const TimeShare& share : shares) sum += share.share;
  EXPECT_THAT(sum, DoubleNear(1, 1e-12));
  EXPECT_THAT(time_shares(StepTotals()), IsEmpty());
}

TEST(PrometheusText, SaysWhatIsNotFinite) {
  StepRecord record = record_with(&Bubble::drain);
  record.report.gradient_norm = std::numeric_limits<double>::infinity();
  record.report.loss.sum = std::nan("");
  record.report.loss.weight = 1;
  const std::string text = prometheus_text({}, record);

  EXPECT_THAT(text, HasSubstr("\nmillrace_gradient_norm +Inf\n"));
  EXPECT_THAT(text, HasSubstr("\nmillrace_loss NaN\n"));
}

}  // namespace
}  // namespace millrace
