// The lists of the numbers of results: JSON, tables, CSV, sweep and Python read them.
#include <algorithm>
#include <array>
#include <functional>

#include "millrace/scheduler/plan/search.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace {

namespace {

template <class Result, auto member>
double get(const Result& result) {
  return std::invoke(member, result);
}

template <double RankReport::*member>
double most(const Report& report) {
  return report.largest(member);
}

}  // namespace

double Report::largest(double RankReport::*member) const {
  double most = 0;
  for (const RankReport& rank : ranks) most = std::max(most, rank.*member);
  return most;
}

template <>
std::span<const ResultField<Report>> result_fields() {
  using enum ResultField<Report>::Unit;
  using enum ResultField<Report>::In;
  static constexpr auto fields = std::to_array<ResultField<Report>>({
      {"makespan",
       "makespan",
       Time,
       Record | Sweep | Compare,
       "From the first op to the last: one step with a barrier",
       get<Report, &Report::makespan>},
      {"bubble_makespan_ratio",
       "bubble",
       Share,
       Record | Sweep | Compare,
       "Share of the makespan in which the busiest rank is idle",
       get<Report, &Report::bubble_makespan_ratio>},
      {"step",
       "step",
       Time,
       Record | Sweep,
       "One optimizer step: micro-batches, gradient sums, update",
       get<Report, &Report::step>},
      {"span",
       "span",
       Time,
       Record | Sweep | Compare | PerPass,
       "Time per step if steps overlapped, as they never do in `train`",
       get<Report, &Report::span>},
      {"bubble_span_ratio",
       "span bubble",
       Share,
       Record | Sweep | Compare | PerPass,
       "Share of the span in which the busiest rank is idle",
       get<Report, &Report::bubble_span_ratio>},
      {"span_asap",
       "span as in papers",
       Time,
       Record | PerPass,
       "Longest time of a rank from its first op to its last",
       get<Report, &Report::span_asap>},
      {"bubble_makespan",
       "bubble of the makespan",
       Time,
       Record,
       "Idle time of the busiest rank within the makespan",
       get<Report, &Report::bubble_makespan>},
      {"bubble_span",
       "bubble of the span",
       Time,
       Record | PerPass,
       "Idle time of the busiest rank within the span",
       get<Report, &Report::bubble_span>},
      {"critical_path",
       "critical path",
       Time,
       Record,
       "Length of the chain of actions that determines the makespan",
       get<Report, &Report::critical_path>},
      {"sums_exposed",
       "exposed sums",
       Time,
       Sweep,
       "What gradient all-reduces add to the makespan",
       [](const Report& report) { return report.sums.exposed; }},
      {"peak_activation",
       "activations",
       MicroBatches,
       Sweep | Compare,
       "Micro-batches that the fullest rank holds, of a full stage",
       most<&RankReport::peak_activation>},
      {"peak_memory",
       "memory",
       Memory,
       Sweep | Compare,
       "Memory of the fullest rank at any moment",
       most<&RankReport::peak_bytes>},
  });
  return fields;
}

template <>
std::span<const ResultField<RankReport>> result_fields() {
  using enum ResultField<RankReport>::Unit;
  using enum ResultField<RankReport>::In;
  static constexpr auto fields = std::to_array<ResultField<RankReport>>({
      {"busy", "busy", Time, Record, "Time in passes", get<RankReport, &RankReport::busy>},
      {"peak_activation",
       "activations",
       MicroBatches,
       Record,
       "Micro-batches of a full stage held until W or B",
       get<RankReport, &RankReport::peak_activation>},
      {"peak_bytes",
       "memory",
       Memory,
       Record,
       "Most memory at any moment",
       get<RankReport, &RankReport::peak_bytes>},
  });
  return fields;
}

template <>
std::span<const ResultField<Idle>> result_fields() {
  using enum ResultField<Idle>::Unit;
  using enum ResultField<Idle>::In;
  static constexpr auto fields = std::to_array<ResultField<Idle>>({
      {"warm_up", "warm-up", Time, Record, "Before the first op", get<Idle, &Idle::warm_up>},
      {"drain", "drain", Time, Record, "After the last op", get<Idle, &Idle::drain>},
      {"transfer", "transfer", Time, Record, "Waits for messages", get<Idle, &Idle::transfer>},
      {"imbalance",
       "imbalance",
       Time,
       Record,
       "Waits that equal stages would avoid",
       get<Idle, &Idle::imbalance>},
      {"processor",
       "core",
       Time,
       Record,
       "Waits that a core per rank would avoid",
       get<Idle, &Idle::processor>},
      {"dependency", "dependency", Time, Record, "All other waits", get<Idle, &Idle::dependency>},
  });
  return fields;
}

template <>
std::span<const ResultField<SumReport>> result_fields() {
  using enum ResultField<SumReport>::Unit;
  using enum ResultField<SumReport>::In;
  static constexpr auto fields = std::to_array<ResultField<SumReport>>({
      {"longest",
       "gradient all-reduces",
       Time,
       Record,
       "Of the rank that they keep busy longest",
       get<SumReport, &SumReport::longest>},
      {"hidden",
       "hidden",
       Time,
       Record,
       "Of it, next to passes",
       get<SumReport, &SumReport::hidden>},
      {"exposed",
       "exposed",
       Time,
       Record,
       "What they add to the makespan",
       get<SumReport, &SumReport::exposed>},
  });
  return fields;
}

template <>
std::span<const ResultField<Spread>> result_fields() {
  using enum ResultField<Spread>::Unit;
  using enum ResultField<Spread>::In;
  static constexpr auto fields = std::to_array<ResultField<Spread>>({
      {"mean", "mean", Time, Record, "Mean makespan", get<Spread, &Spread::mean>},
      {"least", "least", Time, Record, "Smallest makespan", get<Spread, &Spread::least>},
      {"p05", "5 %", Time, Record, "5 % of the runs are not longer", get<Spread, &Spread::p05>},
      {"median",
       "median",
       Time,
       Record,
       "Half of the runs are not longer",
       get<Spread, &Spread::median>},
      {"p95", "95 %", Time, Record, "95 % of the runs are not longer", get<Spread, &Spread::p95>},
      {"p99", "99 %", Time, Record, "99 % of the runs are not longer", get<Spread, &Spread::p99>},
      {"most", "most", Time, Record, "Largest makespan", get<Spread, &Spread::most>},
  });
  return fields;
}

template <>
std::span<const ResultField<FoundSchedule>> result_fields() {
  using enum ResultField<FoundSchedule>::Unit;
  using enum ResultField<FoundSchedule>::In;
  static constexpr auto fields = std::to_array<ResultField<FoundSchedule>>({
      {"makespan",
       "makespan",
       Time,
       Record,
       "Of the last pass",
       get<FoundSchedule, &FoundSchedule::makespan>},
      {"step",
       "step",
       Time,
       Record,
       "All passes of a step",
       get<FoundSchedule, &FoundSchedule::step>},
      {"span",
       "span",
       Time,
       Record,
       "Time per step when steps overlap",
       get<FoundSchedule, &FoundSchedule::span>},
      {"peak_memory",
       "memory",
       Memory,
       Record,
       "Memory of the fullest rank at any moment",
       get<FoundSchedule, &FoundSchedule::peak_memory>},
  });
  return fields;
}

}  // namespace millrace
