// Figures of generated schedules that are published as numbers: the ratios of the wave pipeline and
// the bubble rates of the zero-bubble paper.
#include <array>
#include <utility>

#include <gtest/gtest.h>

#include "support/figures.hpp"

namespace millrace {
namespace {

using testing::figures;
using testing::peak_of;
using testing::sized;

TEST(WavePipeline, HasTheBubbleRatiosOfItsListSchedule) {
  // By p, then m = p and m = 2p, one, two and four waves, F = 1 and B = 2, in thousandths.
  struct Row {
    int ranks, micro_batches;
    std::array<int, 3> thousandths;
  };
  for (const Row& row : {Row{4, 4, {333, 213, 119}},
                         {4, 8, {262, 165, 90}},
                         {8, 8, {368, 238, 135}},
                         {8, 16, {299, 203, 113}}})
    for (const auto& [waves, column] : {std::pair{1, 0}, {2, 1}, {4, 2}}) {
      ScheduleOptions options = sized(row.ranks, row.micro_batches);
      options.waves = waves;
      const Report report = figures(generate("wave", options), 1, 1, 1);
      EXPECT_NEAR(1000 * report.bubble_makespan_ratio(),
                  row.thousandths[static_cast<std::size_t>(column)],
                  0.6)
          << row.ranks << " " << row.micro_batches << " " << waves;
      EXPECT_LE(peak_of(report), row.ranks);
    }
}

/// (cost - m (F+I+W)) / cost of the published setting p = 8, m = 24.
double rate(double cost) {
  return (cost - 24 * (18.522 + 18.086 + 9.337)) / cost;
}

Report published(const char* name, const ScheduleOptions& options) {
  return figures(generate(name, options), 18.522, 18.086, 9.337, 0.601);
}

TEST(ZeroBubblePaper, BubbleRatesComeOutToFourDigits) {
  ScheduleOptions options = sized(8, 24);
  EXPECT_NEAR(rate(published("1f1b", options).makespan), 0.2431, 5e-5);
  EXPECT_NEAR(rate(published("zb-h1", options).makespan), 0.1585, 5e-5);
  EXPECT_NEAR(rate(published("zb-h2", options).span), 0.1083, 5e-5);
}

TEST(ZeroBubblePaper, TheHeuristicHasItsPublishedRatesUnderBothLimits) {
  ScheduleOptions options = sized(8, 24);
  options.forward = 18.522, options.input = 18.086, options.weight = 9.337, options.latency = 0.601;
  options.memory_forward = 201216, options.memory_input = -127488, options.memory_weight = -73728;
  options.memory_limit = 8 * 201216.0;
  EXPECT_NEAR(rate(published("zb-auto", options).span), 0.1585, 5e-5);
  options.memory_limit = 16 * 201216.0;
  EXPECT_NEAR(rate(published("zb-auto", options).span), 0.0433, 5e-5);
}

}  // namespace
}  // namespace millrace
