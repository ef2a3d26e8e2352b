// The published closed forms on the grid p = 1 to 8, 12, 16 and m = 1, p-1, p, p+1, 2p-1, 2p, 3p,
// 8p: equal to the simulation, in integers, inside the domain that closed_forms.hpp states, and the
// bound that it states outside. F, I and W are multiples of v q where chunks or slices divide them.
#include "plan/closed_forms.hpp"

#include <array>
#include <utility>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

using closed_forms::StageTimes;
using testing_plan::figures;
using testing_plan::kRanks;
using testing_plan::peak_of;
using testing_plan::sized;
using testing_plan::telling_micro_batches;

/// Equal stages, unequal halves, and orders of F, I and W at which the forms change.
constexpr std::array kTimes = {StageTimes{4, 4, 4},
                               StageTimes{4, 4, 2},
                               StageTimes{4, 6, 2},
                               StageTimes{6, 4, 2},
                               StageTimes{4, 4, 6},
                               StageTimes{2, 4, 4},
                               StageTimes{3, 5, 3}};

/// Calls `check(p, m)` on the grid.
template <class Check>
void on_grid(Check&& check) {
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p)) {
      SCOPED_TRACE("p=" + std::to_string(p) + " m=" + std::to_string(m));
      check(p, m);
    }
}

Report timed(const char* name, const ScheduleOptions& options, StageTimes t) {
  return figures(decouple_pairs(generate(name, options)), t.forward, t.input, t.weight);
}

/// Bubble of the span as papers print it.
double bubble_asap(const Report& report) {
  return report.span_asap - (report.span - report.bubble_span);
}

/// With pairs as one op of the time of both halves.
Report timed_atomic(const char* name, const ScheduleOptions& options, StageTimes t) {
  const Program program = generate(name, options);
  const Graph graph(program);
  Cost cost = Cost::of_full_stage(program.shape, t.forward, t.input, t.weight);
  const double share = static_cast<double>(program.shape.ranks) / program.shape.stages();
  cost.pair.ticks.fill((t.forward + t.input + t.weight) * cost.ticks_per_unit * share);
  const auto result = simulate(graph, cost);
  return report(graph, cost, std::get<Timeline>(result));
}

void expect_form(double figure, double form, bool exact, const std::string& what) {
  if (exact)
    EXPECT_EQ(figure, form) << what;
  else
    EXPECT_GE(figure, form) << what;
}

TEST(ClosedForms, FusedOneChunk_HasItsBubble) {
  for (const char* name : {"gpipe", "gpipe-lifo", "1f1b", "eager-1f1b"})
    on_grid([&](int p, int m) {
      const Report report = figures(generate(name, sized(p, m)), 5, 3, 4);
      EXPECT_EQ(report.bubble_makespan, closed_forms::fused_bubble(p, 1, 1, {5, 3, 4})) << name;
      EXPECT_EQ(report.bubble_span, report.bubble_makespan) << name;
    });
}

TEST(ClosedForms, FusedOneChunkSchedulesHoldTheirPeaks) {
  on_grid([](int p, int m) {
    const Report one = figures(generate("1f1b", sized(p, m)), 1, 1, 1);
    const Report eager = figures(generate("eager-1f1b", sized(p, m)), 1, 1, 1);
    const Report all = figures(generate("gpipe", sized(p, m)), 1, 1, 1);
    for (int r = 0; r < p; ++r) {
      const auto rank = static_cast<std::size_t>(r);
      EXPECT_EQ(one.ranks[rank].peak_activation, closed_forms::one_f_one_b_peak(p, m, r));
      EXPECT_EQ(eager.ranks[rank].peak_activation, closed_forms::eager_peak(p, m, r));
      EXPECT_EQ(all.ranks[rank].peak_activation, m);
    }
  });
}

/// Unset, and every group of the telling sizes that works for these counts.
std::vector<std::pair<std::optional<int>, int>> groups(int p, int m) {
  const auto works = [&](int g) {
    return m < p ? g == m : g >= p && g <= m && (m % g == 0 || m % g >= p);
  };
  int smallest = std::min(p, m);
  while (!works(smallest)) ++smallest;
  std::vector<std::pair<std::optional<int>, int>> result = {{std::nullopt, smallest}};
  for (const int g : std::set<int>{p, p + 1, 2 * p, m})
    if (works(g)) result.emplace_back(g, g);
  return result;
}

void expect_interleaved(const ScheduleOptions& options, int g) {
  const int p = options.ranks, m = options.micro_batches, v = *options.chunks;
  const std::string what = "v=" + std::to_string(v) + " g=" + std::to_string(g);
  const StageTimes t{12, 24, 12};
  const Report fused = timed("interleaved", options, t);
  const Report split = timed("interleaved-zb", options, t);
  expect_form(fused.bubble_makespan, closed_forms::fused_bubble(p, v, 1, t), m >= p, what);
  expect_form(split.bubble_makespan, closed_forms::zero_bubble_1p(p, v, t), m >= p, what);
  for (int r = 0; r < p; ++r) {
    const auto rank = static_cast<std::size_t>(r);
    EXPECT_EQ(fused.ranks[rank].peak_activation, closed_forms::interleaved_peak(p, m, v, g, r))
        << what << " rank " << r;
    EXPECT_EQ(split.ranks[rank].peak_activation,
              std::min<double>(m, closed_forms::split_loop_peak(p, v, g)))
        << what << " rank " << r;
  }
}

TEST(ClosedForms, Interleaved_HasBubbleAndPeaks) {
  on_grid([](int p, int m) {
    for (int v = 1; v <= 4; ++v)
      for (const auto& [asked, group] : groups(p, m)) {
        ScheduleOptions options = sized(p, m);
        options.chunks = v;
        options.group = asked;
        expect_interleaved(options, group);
      }
  });
}

TEST(ClosedForms, LoopedAndForward_DivideBubbleByChunks) {
  on_grid([](int p, int m) {
    for (int v = 1; v <= 4; ++v) {
      ScheduleOptions options = sized(p, m);
      options.chunks = v;
      const StageTimes t{12, 24, 12};
      const std::string what = "v=" + std::to_string(v);
      for (const char* name : {"bfs", "bfs-lifo"}) {
        const Report report = timed(name, options, t);
        expect_form(report.bubble_makespan, closed_forms::fused_bubble(p, v, 1, t), m >= p, what);
        for (const RankReport& rank : report.ranks) EXPECT_EQ(rank.peak_activation, m) << what;
      }
      expect_form(timed("forward", options, t).bubble_makespan,
                  closed_forms::forward_only(p, v, 12),
                  m >= p,
                  what);
    }
  });
}

TEST(ClosedForms, ZbH1_HasItsBubble) {
  on_grid([](int p, int m) {
    for (const StageTimes& t : kTimes) {
      const Report report = timed("zb-h1", sized(p, m), t);
      expect_form(report.bubble_makespan,
                  closed_forms::zero_bubble_1p(p, 1, t),
                  m >= p && t.weight <= std::min(t.forward, t.input),
                  "W " + std::to_string(t.weight));
      for (const RankReport& rank : report.ranks) EXPECT_EQ(rank.peak_activation, std::min(p, m));
    }
  });
}

TEST(ClosedForms, ZbH2FilledLag_HasSpanAndPeak) {
  on_grid([](int p, int m) {
    const bool filled = m >= 2 * p - 1;
    for (const StageTimes& t : kTimes) {
      const Report report = timed("zb-h2", sized(p, m), t);
      expect_form(report.bubble_span,
                  closed_forms::zb_h2_span(p, t),
                  filled && t.weight <= t.forward && 2 * t.weight <= t.forward + t.input,
                  "W " + std::to_string(t.weight));
      EXPECT_EQ(bubble_asap(report), report.bubble_span);
      EXPECT_GE(report.bubble_makespan, (p - 1) * t.forward);
      EXPECT_EQ(peak_of(report), closed_forms::zb_h2_peak(p, m));
    }
  });
}

TEST(ClosedForms, ZbVHasItsSpanMakespanAndPeak) {
  on_grid([](int p, int m) {
    const bool filled = m >= 2 * p - 1;
    for (const StageTimes& t : kTimes) {
      const Report report = timed("zb-v", sized(p, m), t);
      const double span = closed_forms::zb_v_span(p, t);
      const bool inside = t.weight <= t.forward && t.forward <= t.input;
      if (inside || !filled) expect_form(report.bubble_span, span, filled, "span");
      if (inside || !filled) expect_form(bubble_asap(report), span, filled, "span of papers");
      if (filled && t.forward > t.input) {
        EXPECT_LE(report.bubble_span, span);
      }
      if (t.forward == t.input)
        expect_form(report.bubble_makespan,
                    closed_forms::zb_v_makespan(p, t),
                    filled && t.weight <= t.forward,
                    "makespan");
      EXPECT_EQ(peak_of(report), std::min(p, m));
    }
  });
}

TEST(ClosedForms, GroupedSchedulesTradeTheirBubbleForMemory) {
  on_grid([](int p, int m) {
    for (int v = 1; v <= 4; ++v)
      for (int g = (p + 1) / 2; g <= p; ++g) {
        if (m < p || m % g != 0) continue;
        ScheduleOptions options = sized(p, m);
        options.chunks = v;
        options.group = g;
        const std::string what = "v=" + std::to_string(v) + " g=" + std::to_string(g);
        const Report zb = timed("grouped-zb", options, {12, 12, 12});
        const Report fused = timed("group-interleaved", options, {12, 12, 12});
        const double form = closed_forms::grouped_zb(p, v, g, 12);
        EXPECT_LE(zb.bubble_makespan, form) << what;
        if (v > 1) {
          EXPECT_EQ(zb.bubble_makespan, form) << what;
        }
        EXPECT_EQ(fused.bubble_makespan, closed_forms::group_interleaved(p, v, g, 12)) << what;
        for (int r = 0; r < p; ++r) {
          const auto rank = static_cast<std::size_t>(r);
          EXPECT_EQ(zb.ranks[rank].peak_activation, closed_forms::split_loop_peak(p, v, g));
          EXPECT_EQ(fused.ranks[rank].peak_activation,
                    closed_forms::group_interleaved_peak(p, v, g, r));
        }
      }
  });
}

TEST(ClosedForms, Chimera_HasBubbleAndPeaks) {
  on_grid([](int p, int m) {
    if (p % 2 != 0 || m % p != 0) return;
    const Report report = timed("chimera", sized(p, m), {2, 2, 2});
    EXPECT_EQ(report.bubble_makespan, closed_forms::chimera(p, m, 2));
    for (int r = 0; r < p; ++r)
      EXPECT_EQ(report.ranks[static_cast<std::size_t>(r)].peak_activation,
                closed_forms::chimera_peak(p, r))
          << r;
  });
}

TEST(ClosedForms, DualPipes_HaveBubblesWithPairsOrNot) {
  on_grid([](int p, int m) {
    if (m < 2 * p) return;
    const bool both_ways = p % 2 == 0 && m % 2 == 0;
    for (const StageTimes& t : kTimes) {
      if (t.forward != t.input || t.weight > t.forward) continue;
      const Report apart = timed("dualpipe-v", sized(p, m), t);
      EXPECT_EQ(apart.bubble_makespan, closed_forms::dualpipe_v(p, t));
      EXPECT_EQ(timed_atomic("dualpipe-v", sized(p, m), t).bubble_makespan,
                closed_forms::dualpipe_v_atomic(p, t));
      for (const RankReport& rank : apart.ranks)
        EXPECT_EQ(rank.peak_activation, closed_forms::dualpipe_v_peak(p));
      if (!both_ways) continue;
      const Report dual = timed("dualpipe", sized(p, m), t);
      EXPECT_EQ(dual.bubble_makespan, closed_forms::dualpipe(p, t));
      EXPECT_EQ(timed_atomic("dualpipe", sized(p, m), t).bubble_makespan,
                closed_forms::dualpipe_atomic(p, t));
      for (const RankReport& rank : dual.ranks)
        EXPECT_EQ(rank.peak_activation, closed_forms::dualpipe_peak(p));
    }
  });
}

TEST(ClosedForms, ControllableMemorySchedulesHoldWhatTheirBlocksHold) {
  on_grid([](int p, int m) {
    const Report half = timed("v-half", sized(p, m), {2, 2, 2});
    const Report least = timed("v-min", sized(p, m), {2, 2, 2});
    const double most_half = closed_forms::v_half_peak(p), most_min = closed_forms::v_min_peak(p);
    EXPECT_LE(peak_of(half), most_half);
    EXPECT_LE(peak_of(least), most_min);
    if (m >= p) {
      EXPECT_EQ(peak_of(half), most_half);
      EXPECT_EQ(peak_of(least), most_min);
    }
    const bool exact = p % 2 == 0 && p >= 4 && m >= 2 * p - 1;
    expect_form(half.bubble_makespan, closed_forms::v_half(p, 2), exact, "makespan");
    expect_form(half.bubble_span, closed_forms::v_half(p, 2), exact, "span");
    expect_form(bubble_asap(half), closed_forms::v_half(p, 2), exact, "span of papers");
  });
  for (const auto& [p, bubble, peak] : {std::array{4, 15, 3}, {8, 33, 6}}) {
    const Report fused = figures(generate("1f1b-v", sized(p, 4 * p)), 2, 2, 2);
    EXPECT_EQ(fused.bubble_makespan, bubble) << p;
    EXPECT_EQ(peak_of(fused), peak) << p;
  }
}

/// The first cycle of micro-batches when they are cut into `cycles`.
int first_cycle(int m, int cycles) {
  return m / cycles + (m % cycles == 0 ? 0 : 1);
}

struct SlicedEntry {
  const char* name;
  int bias;  ///< with several chunks
  bool short_cycles;
};

void expect_sliced(const SlicedEntry& entry, const ScheduleOptions& options) {
  const int p = options.ranks, m = options.micro_batches;
  const int v = options.chunks.value_or(1), q = *options.slices;
  const std::string what =
      std::string(entry.name) + " v=" + std::to_string(v) + " q=" + std::to_string(q);
  const StageTimes t{144, 288, 144};
  Report report;
  try {
    report = timed(entry.name, options, t);
  } catch (const InvalidArgument&) {
    EXPECT_TRUE(entry.short_cycles && (q > p || m * q < p || p % q != 0)) << what;
    return;
  }
  const bool exact = v == 1 || (entry.short_cycles ? p % q == 0 : m >= p);
  expect_form(report.bubble_makespan, closed_forms::fused_bubble(p, v, q, t), exact, what);
  const int cycle = first_cycle(m, entry.short_cycles ? m / (p / q) : std::max(1, m / p));
  for (int r = 0; r < p; ++r)
    EXPECT_EQ(report.ranks[static_cast<std::size_t>(r)].peak_activation * v * q,
              closed_forms::sequence_peak({p, m, v, q, v == 1 ? 1 : entry.bias, cycle}, r) * v * q)
        << what << " rank " << r;
}

TEST(ClosedForms, SlicedLoops_DivideTheBubble) {
  on_grid([](int p, int m) {
    for (int v = 1; v <= 4; ++v)
      for (int q = 1; q <= 4; ++q) {
        ScheduleOptions options = sized(p, m);
        options.chunks = v;
        options.slices = q;
        expect_sliced({"seqpipe", 2, false}, options);
        if (v > 1) expect_sliced({"seq-vpp", 2, true}, options);
        expect_sliced({"seq-smart-vpp", 1, true}, options);
      }
  });
}

TEST(ClosedForms, SlicedOneChunk_DividesBubbleBySlices) {
  on_grid([](int p, int m) {
    for (int q = 1; q <= 4; ++q) {
      ScheduleOptions options = sized(p, m);
      options.slices = q;
      expect_sliced({"seq-1f1b", 1, false}, options);
      const Report whole = timed("terapipe", options, {144, 288, 144});
      EXPECT_EQ(whole.bubble_makespan, closed_forms::fused_bubble(p, 1, q, {144, 288, 144}));
      for (const RankReport& rank : whole.ranks) EXPECT_EQ(rank.peak_activation, m);
    }
  });
}

}  // namespace
}  // namespace millrace
