// The published table at p = 4, m = 8, F = I = W = 1: makespan bubble, span bubble and peak per
// rank; the figures of grouped zero bubble at p = 8; and the slicing of a sequence.
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/closed_forms.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

using testing_plan::figures;
using testing_plan::peak_of;
using testing_plan::sized;

struct Row {
  const char* schedule;
  int chunks, slices, group;  // 0: not given
  double makespan_bubble, span_bubble;
  std::vector<double> peaks;  // one value: the largest
};

ScheduleOptions options_of(const Row& row) {
  ScheduleOptions options = sized(4, 8);
  if (row.chunks > 0) options.chunks = row.chunks;
  if (row.slices > 0) options.slices = row.slices;
  if (row.group > 0) options.group = row.group;
  return options;
}

TEST(PublishedTable, HasTheFiguresOfEverySchedule) {
  const std::vector<Row> rows = {
      {"gpipe", 0, 0, 0, 9, 9, {8, 8, 8, 8}},
      {"1f1b", 0, 0, 0, 9, 9, {4, 3, 2, 1}},
      {"eager-1f1b", 0, 0, 0, 9, 9, {7, 5, 3, 1}},
      {"interleaved", 2, 0, 4, 4.5, 4.5, {5.5, 4.5, 3.5, 2.5}},
      {"interleaved", 2, 0, 8, 4.5, 4.5, {7.5, 6.5, 5.5, 4.5}},
      {"interleaved", 4, 0, 4, 2.25, 2.25, {4.75, 4.25, 3.75, 3.25}},
      {"bfs", 2, 0, 0, 4.5, 4.5, {8, 8, 8, 8}},
      {"zb-h1", 0, 0, 0, 3, 3, {4, 4, 4, 4}},
      {"zb-h2", 0, 0, 0, 3, 0, {7, 7, 7, 7}},
      {"interleaved-zb", 2, 0, 0, 1.5, 1.5, {4, 4, 4, 4}},
      {"zb-v", 0, 0, 0, 1.5, 0, {4, 4, 4, 4}},
      {"zb-v-auto", 0, 0, 0, 1.5, 0, {4, 4, 4, 4}},
      {"dualpipe-v", 0, 0, 0, 1.5, 1.5, {4.5, 4.5, 4.5, 4.5}},
      {"v-half", 0, 0, 0, 2.5, 2.5, {3}},
      {"v-min", 0, 0, 0, 5.5, 5.5, {2}},
      {"seqpipe", 1, 2, 0, 4.5, 4.5, {2.5, 2, 1.5, 1}},
      {"seqpipe", 1, 4, 0, 2.25, 2.25, {1.75, 1.5, 1.25, 1}},
      {"seqpipe", 2, 2, 0, 2.25, 2.25, {4, 3.5, 3, 2.5}},
      {"seq-vpp", 2, 2, 0, 2.25, 2.25, {3, 2.5, 2, 1.5}},
      {"seq-smart-vpp", 2, 2, 0, 2.25, 2.25, {2.25, 2, 1.75, 1.5}},
  };

  for (const Row& row : rows) {
    const Report report = figures(decouple_pairs(generate(row.schedule, options_of(row))), 1, 1, 1);
    EXPECT_EQ(report.bubble_makespan, row.makespan_bubble) << row.schedule;
    EXPECT_EQ(report.bubble_span, row.span_bubble) << row.schedule;
    EXPECT_EQ(report.span_asap, report.span) << row.schedule;
    EXPECT_EQ(peak_of(report), row.peaks[0]) << row.schedule;
    for (std::size_t r = 0; row.peaks.size() == 4 && r < 4; ++r)
      EXPECT_EQ(report.ranks[r].peak_activation, row.peaks[r]) << row.schedule << " rank " << r;
  }
}

TEST(GroupedZeroBubble, EightRanks_HasPublishedFigures) {
  // v, g, bubble at F=I=W, bubble at 1, 1.2, .8, peak.
  const std::vector<std::array<double, 5>> rows = {{4, 4, 5.5, 7.45, 5},
                                                   {3, 4, 6, 8.07, 16 / 3.0},
                                                   {4, 6, 3.25, 3.95, 6.5},
                                                   {4, 8, 1.75, 2.45, 8}};

  for (const auto& [v, g, equal, unequal, peak] : rows) {
    ScheduleOptions options = sized(8, 24);
    options.chunks = static_cast<int>(v);
    options.group = static_cast<int>(g);
    const Program program = generate("grouped-zb", options);
    const Report report = figures(program, 1, 1, 1);
    EXPECT_NEAR(report.bubble_makespan, equal, 1e-9) << v << " " << g;
    EXPECT_NEAR(peak_of(report), peak, 1e-9) << v << " " << g;
    EXPECT_NEAR(figures(program, 1, 1.2, 0.8).bubble_makespan, unequal, 6e-3) << v << " " << g;
  }
}

TEST(VZb, EveryLimit_ReachesTheAuthorsEnvelope) {
  // Span bubble in chunk passes with k chunks held: 3p-1-3k + max(3p, p+1+2 ceil(k/2)), from the
  // memory of V-Min's block on; below it no order is found.
  for (int p = 2; p <= 8; ++p)
    for (const int m : {2 * p, 3 * p})
      for (int k = 1; k <= 2 * p; ++k) {
        ScheduleOptions options = sized(p, m);
        options.memory_limit = k / 2.0;
        if (k < 2 * closed_forms::v_min_peak(p)) {
          EXPECT_THROW(static_cast<void>(generate("v-zb", options)), InvalidArgument) << p << k;
          continue;
        }
        const Report report = figures(generate("v-zb", options), 2, 2, 2);
        EXPECT_EQ(report.bubble_span,
                  3 * p - 1 - 3 * k + std::max(3 * p, p + 1 + 2 * ((k + 1) / 2)))
            << p << " " << m << " " << k;
        EXPECT_LE(peak_of(report), k / 2.0) << p << " " << m << " " << k;
      }
}

TEST(TeraPipe, CutsAUniformSequenceAsFineAsItMay) {
  // Without a fixed cost per slice, shorter slices only shorten the (p-1) T term.
  const Slicing fine = terapipe_slices([](int length, int) { return length; }, 8, 4);
  EXPECT_EQ(fine.lengths, std::vector<int>(8, 1));
  EXPECT_EQ(fine.latency, 8 + 3);

  // A fixed cost of 100 per slice makes one slice best.
  const Slicing whole = terapipe_slices([](int length, int) { return 100 + length; }, 8, 2);
  EXPECT_EQ(whole.lengths, std::vector<int>{8});
  EXPECT_EQ(whole.latency, 2 * 108);
}

TEST(TeraPipe, FindsTheBestCutOfAllCuts) {
  const auto latency = [](int length, int context) {
    return 3.0 + length + 0.5 * length * context;
  };
  for (const int tokens : {1, 5, 9}) {
    const unsigned ways = 1U << static_cast<unsigned>(tokens - 1);
    for (const int p : {1, 2, 5}) {
      double best = 1e300;
      for (unsigned cuts = 0; cuts < ways; ++cuts) {
        double sum = 0, largest = 0;
        for (int end = 1, start = 0; end <= tokens; ++end) {
          if (end < tokens && (cuts >> static_cast<unsigned>(end - 1) & 1U) == 0) continue;
          const double one = latency(end - start, start);
          sum += one;
          largest = std::max(largest, one);
          start = end;
        }
        best = std::min(best, sum + (p - 1) * largest);
      }
      const Slicing found = terapipe_slices(latency, tokens, p);
      EXPECT_DOUBLE_EQ(found.latency, best) << tokens << " " << p;
      EXPECT_EQ(std::accumulate(found.lengths.begin(), found.lengths.end(), 0), tokens);
    }
  }
}

TEST(TeraPipe, RefusesAStepThatDoesNotDivideTheTokens) {
  EXPECT_THROW(static_cast<void>(terapipe_slices([](int n, int) { return n; }, 10, 2, 3)),
               InvalidArgument);
}

}  // namespace
}  // namespace millrace
