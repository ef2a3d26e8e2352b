// Figures of generated schedules against what is published: closed forms on a grid, in integers,
// and the bubble rates of the zero-bubble paper.
#include <array>
#include <utility>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/closed_forms.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

using testing::figures;
using testing::kRanks;
using testing::peak_of;
using testing::sized;
using testing::telling_micro_batches;

TEST(ClosedForms, FusedOneChunkSchedulesHaveTheirBubbleForEveryCount) {
  for (const char* name : {"gpipe", "gpipe-lifo", "1f1b", "eager-1f1b"})
    for (const int p : kRanks)
      for (const int m : telling_micro_batches(p)) {
        const Report report = figures(generate(name, sized(p, m)), 5, 3, 4);
        const double bubble = closed_forms::fused_bubble(p, 1, 1, {5, 3, 4});
        EXPECT_EQ(report.bubble_makespan, bubble) << name << " p=" << p << " m=" << m;
      }
}

TEST(ClosedForms, OneFOneBHoldsOneActivationPerRankBehindIt) {
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p)) {
      const Report one = figures(generate("1f1b", sized(p, m)), 1, 1, 1);
      const Report eager = figures(generate("eager-1f1b", sized(p, m)), 1, 1, 1);
      for (int r = 0; r < p; ++r) {
        const auto rank = static_cast<std::size_t>(r);
        EXPECT_EQ(one.ranks[rank].peak_activation, closed_forms::one_f_one_b_peak(p, m, r));
        EXPECT_EQ(eager.ranks[rank].peak_activation, closed_forms::eager_peak(p, m, r));
      }
    }
}

TEST(ClosedForms, LoopedSchedulesDivideTheBubbleByTheirChunks) {
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p))
      for (int v = 1; v <= 4; ++v) {
        ScheduleOptions options = sized(p, m);
        options.chunks = v;
        for (const char* name : {"interleaved", "bfs", "bfs-lifo"}) {
          const double bubble = figures(generate(name, options), 12, 24, 12).bubble_makespan;
          const double form = closed_forms::fused_bubble(p, v, 1, {12, 24, 12});
          if (m >= p)
            EXPECT_EQ(bubble, form) << name << " p=" << p << " m=" << m << " v=" << v;
          else
            EXPECT_GE(bubble, form) << name << " p=" << p << " m=" << m << " v=" << v;
        }
        const double bubble =
            figures(generate("interleaved-zb", options), 12, 24, 12).bubble_makespan;
        const double form = closed_forms::zero_bubble_1p(p, v, {12, 24, 12});
        if (m >= p && m % p == 0)
          EXPECT_EQ(bubble, form) << "interleaved-zb p=" << p << " m=" << m << " v=" << v;
        else
          EXPECT_GE(bubble, form) << "interleaved-zb p=" << p << " m=" << m << " v=" << v;
      }
}

TEST(ClosedForms, ZeroBubbleSchedulesReachTheirSpanAndPeak) {
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p)) {
      const Report h1 = figures(generate("zb-h1", sized(p, m)), 4, 4, 2);
      const Report h2 = figures(generate("zb-h2", sized(p, m)), 4, 4, 2);
      const Report v = figures(generate("zb-v", sized(p, m)), 4, 4, 2);
      EXPECT_EQ(peak_of(h1), std::min(p, m));
      if (m >= p) {
        EXPECT_EQ(h1.bubble_makespan, closed_forms::zero_bubble_1p(p, 1, {4, 4, 2}));
      }
      if (m < 2 * p - 1) continue;
      EXPECT_EQ(h2.bubble_span, closed_forms::zb_h2_span(p, {4, 4, 2})) << p << " " << m;
      EXPECT_EQ(peak_of(h2), 2 * p - 1);
      EXPECT_EQ(v.bubble_span, closed_forms::zb_v_span(p, {4, 4, 2})) << p << " " << m;
      EXPECT_EQ(v.bubble_makespan, closed_forms::zb_v_makespan(p, {4, 4, 2})) << p << " " << m;
      EXPECT_EQ(peak_of(v), p);
    }
}

TEST(ClosedForms, GroupedSchedulesTradeTheirBubbleForMemory) {
  for (const int p : {4, 6, 8, 12})
    for (int v = 2; v <= 4; ++v)
      for (int g = (p + 1) / 2; g <= p; ++g) {
        ScheduleOptions options = sized(p, 6 * g);
        options.chunks = v;
        options.group = g;
        const Report zb = figures(generate("grouped-zb", options), 12, 12, 12);
        const Report fused = figures(generate("group-interleaved", options), 12, 12, 12);
        EXPECT_EQ(zb.bubble_makespan, closed_forms::grouped_zb(p, v, g, 12)) << p << v << g;
        EXPECT_EQ(fused.bubble_makespan, closed_forms::group_interleaved(p, v, g, 12))
            << p << v << g;
        EXPECT_NEAR(peak_of(zb), closed_forms::split_loop_peak(p, v, g), 1e-12);
        EXPECT_NEAR(peak_of(fused), closed_forms::group_interleaved_peak(p, v, g, 0), 1e-12);
      }
}

TEST(ClosedForms, ChimeraAndDualPipeVHaveTheirBubbles) {
  for (const int p : {2, 4, 6, 8}) {
    for (const int units : {1, 2, 3}) {
      const Report chimera = figures(generate("chimera", sized(p, units * p)), 2, 2, 2);
      EXPECT_EQ(chimera.bubble_makespan, closed_forms::chimera(p, units * p, 2)) << p << units;
    }
    const Report dual = figures(generate("dualpipe-v", sized(p, 3 * p)), 4, 4, 2);
    EXPECT_EQ(dual.bubble_makespan, closed_forms::dualpipe_v(p, {4, 4, 2})) << p;
  }
}

TEST(ClosedForms, ControllableMemorySchedulesHoldWhatTheirBlocksHold) {
  for (const int p : {4, 6, 8, 12}) {
    const Report half = figures(generate("v-half", sized(p, 3 * p)), 2, 2, 2);
    EXPECT_EQ(peak_of(half), closed_forms::v_half_peak(p)) << p;
    EXPECT_EQ(half.bubble_makespan, 3 * p - 7) << p;
    EXPECT_EQ(peak_of(figures(generate("v-min", sized(p, 3 * p)), 2, 2, 2)),
              closed_forms::v_min_peak(p))
        << p;
  }
  for (const auto& [p, bubble, peak] : {std::array{4, 15, 3}, {8, 33, 6}}) {
    const Report fused = figures(generate("1f1b-v", sized(p, 4 * p)), 2, 2, 2);
    EXPECT_EQ(fused.bubble_makespan, bubble) << p;
    EXPECT_EQ(peak_of(fused), peak) << p;
  }
}

TEST(WavePipeline, HasTheBubbleRatiosOfItsListSchedule) {
  // p = 4 and 8 at m = p, one, two and four waves, F = 1 and B = 2, in thousandths.
  const int expected[2][3] = {{333, 213, 119}, {368, 238, 135}};
  for (const int p : {4, 8})
    for (const auto& [waves, column] : {std::pair{1, 0}, {2, 1}, {4, 2}}) {
      ScheduleOptions options = sized(p, p);
      options.waves = waves;
      const Report report = figures(generate("wave", options), 1, 1, 1);
      EXPECT_NEAR(1000 * report.bubble_makespan_ratio(), expected[p / 8][column], 0.6);
      EXPECT_LE(peak_of(report), p);
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
