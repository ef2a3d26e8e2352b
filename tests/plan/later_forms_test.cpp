// Closed forms of the schedules that came later: ZB-H2 of few micro-batches, waves across groups,
// balanced memory, STP, BitPipe and groups of one sliced micro-batch. Equal to the simulation, in
// integers, on the grids that the tests state.
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/closed_forms.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

using closed_forms::StageTimes;
using testing_plan::figures;
using testing_plan::kRanks;
using testing_plan::peak_of;
using testing_plan::sized;
using testing_plan::telling_micro_batches;

Report timed(const char* name, const ScheduleOptions& options, StageTimes t, double latency = 0) {
  const Costs costs{
      .forward = {t.forward}, .input = {t.input}, .weight = {t.weight}, .latency = {latency}};
  return figures(
      decouple_pairs(generate(name, options, costs)), t.forward, t.input, t.weight, latency);
}

std::string shape_of(const ScheduleOptions& options) {
  return "p=" + std::to_string(options.ranks) + " m=" + std::to_string(options.micro_batches) +
         " v=" + std::to_string(options.chunks.value_or(0)) +
         " q=" + std::to_string(options.slices.value_or(0)) +
         " w=" + std::to_string(options.waves.value_or(0));
}

template <class Peak>
void expect_peaks(const Report& report, const ScheduleOptions& options, Peak&& peak) {
  for (int r = 0; r < options.ranks; ++r)
    EXPECT_EQ(report.ranks[static_cast<std::size_t>(r)].peak_activation, peak(r))
        << shape_of(options) << " rank " << r;
}

TEST(LaterForms, ZbH2FewMicroBatches_MeetsOptimum) {
  for (int p = 1; p <= 16; ++p)
    for (int m = p; m < 2 * p - 1; ++m) {
      const Report report = timed("zb-h2", sized(p, m), {1, 1, 1});
      EXPECT_EQ(report.makespan, 3 * m + p - 1) << p << " " << m;
      expect_peaks(report, sized(p, m), [&](int) { return closed_forms::zb_h2_peak(p, m); });
      EXPECT_LE(report.span, timed("zb-h1", sized(p, m), {1, 1, 1}).span) << p << " " << m;
    }
}

TEST(LaterForms, WaveOfRanks_HasItsMakespan) {
  for (int p = 1; p <= 12; ++p)
    for (int waves = 1; waves <= 4; ++waves) {
      ScheduleOptions options = sized(p, p);
      options.waves = waves;
      const double forward = 2.0 * waves;
      const Report report = timed("wave", options, {forward, forward, forward});
      EXPECT_EQ(report.bubble_makespan, closed_forms::wave_of_ranks(p, waves, forward))
          << shape_of(options);
    }
}

TEST(LaterForms, Wave_IsNeverSlowerThanOneFOneBV) {
  for (const int p : kRanks)
    for (int m = p; m <= 4 * p; m += m < 2 * p ? 1 : p / 2 + 1)
      for (const StageTimes& t : {StageTimes{2, 2, 2}, {2, 4, 2}, {4, 2, 2}}) {
        const Report wave = timed("wave", sized(p, m), t);
        EXPECT_LE(wave.makespan, timed("1f1b-v", sized(p, m), t).makespan)
            << shape_of(sized(p, m)) << " " << t.forward << t.input << t.weight;
        EXPECT_LE(peak_of(wave), p) << shape_of(sized(p, m));
        if (p < 4) continue;  // 1f1b-v holds as much
        EXPECT_LE(timed("wave", sized(p, m), t, 1).makespan,
                  timed("1f1b-v", sized(p, m), t, 1).makespan)
            << "late " << shape_of(sized(p, m)) << " " << t.forward << t.input << t.weight;
      }
}

TEST(LaterForms, WaveAcrossGroups_HasFewerBubbles) {
  for (const auto& [m, makespan] : {std::pair{5, 21.5}, {8, 30.0}, {16, 54.0}})
    EXPECT_EQ(timed("wave", sized(4, m), {1, 1, 1}).makespan, makespan) << m;
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p)) {
      ScheduleOptions options = sized(p, m);
      options.waves = 2;
      EXPECT_LE(peak_of(timed("wave", options, {1, 1, 1})), p) << shape_of(options);
    }
}

TEST(LaterForms, BalancedMemory_HasBubbleAndPeaks) {
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p))
      for (int v = 1; v <= 4; ++v) {
        ScheduleOptions options = sized(p, m);
        options.chunks = v;
        const StageTimes t{12, 24, 12};
        const Report report = timed("bfs-balanced", options, t);
        const double bubble = closed_forms::fused_bubble(p, v, 1, t);
        if (m >= p)
          EXPECT_EQ(report.bubble_makespan, bubble) << shape_of(options);
        else
          EXPECT_GE(report.bubble_makespan, bubble) << shape_of(options);
        expect_peaks(
            report, options, [&](int r) { return closed_forms::balanced_peak(p, m, v, r); });
      }
}

TEST(LaterForms, Stp_HasBubbleAndPeaks) {
  for (int p = 1; p <= 8; ++p)
    for (const int m : {3 * p - 1, 3 * p, 3 * p + 1, 6 * p}) {
      if (m < 2) continue;
      for (const StageTimes& t : {StageTimes{2, 2, 2}, {4, 6, 2}, {6, 4, 2}}) {
        const Report report = timed("stp", sized(p, m), t);
        EXPECT_EQ(report.bubble_makespan, closed_forms::dualpipe_v(p, t)) << p << " " << m;
        expect_peaks(report, sized(p, m), [&](int r) { return closed_forms::stp_peak(p, r); });
      }
    }
  for (int p = 1; p <= 8; ++p)
    EXPECT_THROW((void)generate("stp", sized(p, 3 * p - 2)), InvalidArgument) << p;
}

TEST(LaterForms, StpBraided_HidesAllReduces) {
  for (int p = 2; p <= 12; ++p)
    for (const int m : {3 * p - 1, 3 * p, 4 * p + 1})
      for (const double a : {0.0, 0.25, 0.5, 1.0}) {
        const Program program = generate("stp", sized(p, m));
        const Cost cost = cost_of(program.shape,
                                  {.forward = {2 + 2 * a},
                                   .input = {2},
                                   .weight = {2},
                                   .pair_cost = 6,
                                   .pair_input = 4,
                                   .pair_weight = 4,
                                   .pair_forward = 4});
        const Graph graph(program);
        const Report braided = report(graph, cost, std::get<Timeline>(simulate(graph, cost)));
        EXPECT_EQ(braided.makespan, closed_forms::stp_braided(p, m, a))
            << p << " " << m << " " << a;
      }
}

TEST(LaterForms, BitPipe_HasBubbleAndPeaks) {
  for (int p = 2; p <= 12; p += 2)
    for (int m = p; m <= 5 * p; m += p) {
      const Report report = timed("bitpipe", sized(p, m), {2, 2, 2});
      EXPECT_EQ(report.bubble_makespan, closed_forms::bitpipe(p, m, 2)) << p << " " << m;
      expect_peaks(report, sized(p, m), [&](int r) { return closed_forms::bitpipe_peak(p, r); });
    }
}

/// A row of the slim family: the slope of its warm-up, and whether its backwards are split.
struct Slim {
  const char* name;
  int slope;
  bool is_split;
};

void expect_slim(const Slim& slim, const ScheduleOptions& options) {
  const int p = options.ranks, m = options.micro_batches, vq = *options.chunks * *options.slices;
  const double forward = vq;
  const StageTimes t{forward, forward, forward};
  const Report report = timed(slim.name, options, t);
  const double bubble = slim.is_split
                            ? closed_forms::zero_bubble_1p(p, vq, t)
                            : closed_forms::fused_bubble(p, *options.chunks, *options.slices, t);
  if (m > 1 || !slim.is_split) {
    EXPECT_EQ(report.bubble_makespan, bubble) << slim.name << " " << shape_of(options);
  }
  if (m == 2) {
    const Program messages = insert_messages(generate(slim.name, options));
    EXPECT_TRUE(verify(messages, Transport::rendezvous()).empty())
        << slim.name << shape_of(options);
  }
  expect_peaks(report, options, [&](int r) {
    const int ahead = slim.slope * (p - 1 - r) + (slim.is_split ? r : 0);
    return std::min<double>(m * vq, vq + ahead) / vq;
  });
}

TEST(LaterForms, SlimPipe_HasBubbleAndPeaks) {
  int shapes = 0;
  for (const int p : {2, 3, 4, 6, 8})
    for (int v = 1; v <= 3; ++v)
      for (const int q : {p, p + 1, 2 * p, 3 * p})
        for (const int m : {1, 2, 3, 5}) {
          ScheduleOptions options = sized(p, m);
          options.chunks = v;
          options.slices = q;
          for (const Slim& slim : {Slim{"slimpipe", 1, false},
                                   {"slimpipe-eager", 2, false},
                                   {"slimpipe-zb", 1, true},
                                   {"slimpipe-zb-eager", 2, true}})
            expect_slim(slim, options);
          ++shapes;
        }
  EXPECT_EQ(shapes, 240);
}

TEST(LaterForms, SlimPipeEager_HidesLatency) {
  ScheduleOptions options = sized(4, 4);
  options.chunks = 2;
  options.slices = 8;
  for (const auto& [slow, eager] :
       {std::pair{"slimpipe", "slimpipe-eager"}, {"slimpipe-zb", "slimpipe-zb-eager"}}) {
    const auto late = [&](const char* name) {
      return figures(generate(name, options), 16, 16, 16, 1).makespan;
    };
    EXPECT_LT(late(eager), late(slow));
  }
}

TEST(LaterForms, SlimPipe_QueuesFewMessages) {
  struct Case {
    int chunks, slices, queued;
  };
  for (const Case& one : {Case{2, 8, 7}, {2, 4, 3}, {1, 4, 1}}) {
    ScheduleOptions options = sized(4, 4);
    options.chunks = one.chunks;
    options.slices = one.slices;
    int queued = 0;
    for (const ChannelCapacity& channel : channel_capacities(generate("slimpipe", options)))
      queued = std::max(queued, channel.minimal);
    EXPECT_EQ(queued, one.queued) << shape_of(options);
  }
}

}  // namespace
}  // namespace millrace
