// Figures of generated schedules as numbers: the ratios of the wave pipeline, and the bubble rates
// that the zero-bubble paper publishes.
#include <array>
#include <utility>

#include <gtest/gtest.h>

#include "support/figures.hpp"

namespace millrace {
namespace {

using testing_plan::figures;
using testing_plan::peak_of;
using testing_plan::sized;

TEST(WavePipeline, HasTheBubbleRatiosOfItsListSchedule) {
  // By p, then m = p and m = 2p, one, two and four waves, F = 1 and B = 2, in thousandths.
  struct Row {
    int ranks, micro_batches;
    std::array<int, 3> thousandths;
  };
  for (const Row& row : {Row{4, 4, {333, 200, 111}},
                         {4, 8, {200, 150, 81}},
                         {8, 8, {368, 226, 127}},
                         {8, 16, {232, 176, 96}}})
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

TEST(GroupedSchedules, DefaultGroup_CoversTheFlight) {
  struct Row {
    int micro_batches;
    double forward, input, weight;
    int group;
  };
  for (const Row& row : {Row{24, 1, 1, 1, 4},     // 4 x 3 >= 8 x 1
                         Row{24, 1, 1, 0, 4},     // 4 x 2 = 8 x 1 is enough
                         Row{24, 1, 2, 0, 6},     // 5 x 3 < 8 x 2 <= 6 x 3
                         Row{21, 1, 1, 1, 7}}) {  // 4 covers, 7 divides
    ScheduleOptions options = sized(8, row.micro_batches);
    const Costs costs{.forward = {row.forward}, .input = {row.input}, .weight = {row.weight}};
    ScheduleOptions grouped = options;
    grouped.group = row.group;
    for (const char* name : {"group-interleaved", "grouped-zb"})
      EXPECT_EQ(generate(name, options, costs).ranks, generate(name, grouped, costs).ranks)
          << row.group;
  }
}

/// One setting of the Zero Bubble paper: profiled times, hidden size and heads of the model, layers
/// of a stage, and the published rates of 1F1B, 1F1B-I, ZB-H1, ZB-H2, ZB-1p and ZB-2p.
struct Setting {
  int ranks, micro_batches;
  double forward, input, weight, latency;
  int hidden, heads, layers;
  std::array<double, 6> rates;
};

// Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024: bubble rates and profiled times.
constexpr std::array kSettings = {Setting{8,
                                          24,
                                          18.522,
                                          18.086,
                                          9.337,
                                          .601,
                                          2304,
                                          24,
                                          3,
                                          {.2431, .1055, .1585, .1083, .1585, .0433}},
                                  Setting{8,
                                          32,
                                          18.513,
                                          18.086,
                                          9.331,
                                          .626,
                                          2304,
                                          24,
                                          3,
                                          {.1985, .0818, .1242, .0837, .1242, .0039}},
                                  Setting{8,
                                          64,
                                          18.546,
                                          18.097,
                                          9.321,
                                          .762,
                                          2304,
                                          24,
                                          3,
                                          {.1240, .0443, .0674, .0444, .0674, .0026}},
                                  Setting{8,
                                          24,
                                          29.718,
                                          29.444,
                                          19.927,
                                          .527,
                                          4096,
                                          32,
                                          4,
                                          {.2347, .0808, .1323, .0698, .1323, .0029}},
                                  Setting{8,
                                          32,
                                          29.802,
                                          29.428,
                                          19.530,
                                          .577,
                                          4096,
                                          32,
                                          4,
                                          {.1898, .0628, .1045, .0559, .1045, .0022}},
                                  Setting{8,
                                          64,
                                          29.935,
                                          29.621,
                                          19.388,
                                          .535,
                                          4096,
                                          32,
                                          4,
                                          {.1091, .0320, .0554, .0294, .0554, .0010}},
                                  Setting{16,
                                          48,
                                          11.347,
                                          11.248,
                                          8.132,
                                          .377,
                                          5120,
                                          40,
                                          3,
                                          {.2552, .1104, .1397, .0672, .1397, .0066}},
                                  Setting{16,
                                          64,
                                          11.307,
                                          11.254,
                                          8.101,
                                          .379,
                                          5120,
                                          40,
                                          3,
                                          {.2082, .0852, .1088, .0516, .1088, .0054}},
                                  Setting{16,
                                          128,
                                          11.325,
                                          11.308,
                                          8.109,
                                          .378,
                                          5120,
                                          40,
                                          3,
                                          {.1251, .0445, .0576, .0266, .0576, .0028}},
                                  Setting{32,
                                          96,
                                          10.419,
                                          10.207,
                                          7.715,
                                          .408,
                                          6144,
                                          48,
                                          2,
                                          {.2646, .1493, .1421, .0641, .1421, .0038}},
                                  Setting{32,
                                          128,
                                          10.408,
                                          10.204,
                                          7.703,
                                          .408,
                                          6144,
                                          48,
                                          2,
                                          {.2168, .1164, .1106, .0490, .1106, .0029}},
                                  Setting{32,
                                          256,
                                          10.402,
                                          10.248,
                                          7.698,
                                          .460,
                                          6144,
                                          48,
                                          2,
                                          {.1352, .0624, .0594, .0257, .0594, .0018}}};

/// (cost - m (F+I+W)) / cost.
double rate(const Setting& of, double cost) {
  return (cost - of.micro_batches * (of.forward + of.input + of.weight)) / cost;
}

Report timed(const char* name,
             const Setting& of,
             const ScheduleOptions& options,
             const Costs& costs = {}) {
  return figures(generate(name, options, costs), of.forward, of.input, of.weight, of.latency);
}

/// Times, and memory per token and layer: 34h + 5as, of which W frees 32h; 1024 tokens.
Report profiled(const Setting& of, int limit_in_ranks) {
  const double forward = 34.0 * of.hidden + 5.0 * of.heads * 1024, weight = -32.0 * of.hidden;
  ScheduleOptions options = sized(of.ranks, of.micro_batches);
  options.memory_limit = limit_in_ranks * of.ranks * forward;
  return timed("zb-auto",
               of,
               options,
               {.forward = {of.forward},
                .input = {of.input},
                .weight = {of.weight},
                .memory_forward = {forward},
                .memory_input = {-forward - weight},
                .memory_weight = {weight},
                .latency = {of.latency}});
}

TEST(ZeroBubblePaper, BubbleRates_AgreeToFourDigits) {
  for (const Setting& of : kSettings) {
    ScheduleOptions options = sized(of.ranks, of.micro_batches);
    EXPECT_NEAR(rate(of, timed("1f1b", of, options).makespan), of.rates[0], 5.01e-5);
    EXPECT_NEAR(rate(of, timed("zb-h1", of, options).makespan), of.rates[2], 5.01e-5);
    EXPECT_NEAR(rate(of, timed("zb-h2", of, options).span_asap), of.rates[3], 5.01e-5);
    // One layer per chunk. The paper's column leaves out one message through all ranks.
    options.chunks = of.layers;
    const double interleaved = timed("interleaved", of, options).makespan;
    EXPECT_NEAR(rate(of, interleaved - of.ranks * of.latency), of.rates[1], 5.01e-5);
  }
}

TEST(ZeroBubblePaper, Heuristic_HasPublishedRates) {
  for (const Setting& of : kSettings) {
    EXPECT_NEAR(rate(of, profiled(of, 1).span_asap), of.rates[4], 5.01e-5);
    EXPECT_NEAR(rate(of, profiled(of, 2).span_asap), of.rates[5], 5.01e-5);
  }
}

}  // namespace
}  // namespace millrace
