// The figures of one schedule, gathered once for simulate and compare, as text and as JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/numbers.hpp"
#include "cli/plan/options.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace millrace::cli {

struct Figures {
  Report report;
  std::vector<ChannelCapacity> channels;
  std::vector<Violation> violations;  ///< memory limit included
  Accumulation order;
  int passes = 1;  ///< of a step; one of several has no span, for ranks wait between them
};

[[nodiscard]] Figures figures_of(const Graph& graph,
                                 const Cost& cost,
                                 const Timeline& timeline,
                                 const PlanOptions& options);

/// makespan, span and span_asap (null for several passes), bubble_* and their ratios, per_rank,
/// capacity, valid, critical_path.
[[nodiscard]] nlohmann::json to_json(const Figures& figures);

/// name, p, m, v, q and which stages recompute: of the schedule whose metrics follow.
[[nodiscard]] nlohmann::json identity_json(const Program& program);

/// One number in a list of them: title, value, help.
[[nodiscard]] std::string metric_line(std::string_view title,
                                      const std::string& value,
                                      std::string_view help);

/// The numbers that a result lists, by name.
template <class Result>
[[nodiscard]] nlohmann::json record_json(const Result& result) {
  nlohmann::json all = nlohmann::json::object();
  for (const ResultField<Result>& field : result_fields<Result>())
    if (field.is_in(ResultField<Result>::Record)) all[field.name] = field.of(result);
  return all;
}

/// A number as tables have it: "4.5", shares as "27.27 %". See units_text for units.
template <class Result>
[[nodiscard]] std::string shown(const ResultField<Result>& field,
                                const Result& result,
                                int digits = 6) {
  const double value = field.of(result);
  return field.unit == ResultField<Result>::Unit::Share ? percent(value) : brief(value, digits);
}

/// "order", "weight after input".
[[nodiscard]] std::string name_of(Rule rule);

/// "makespan  33  From the first op ...": a line per number, but for those of one pass in a step of
/// several.
template <class Result>
[[nodiscard]] std::string lines_of(const Result& result, int passes = 1) {
  using Field = ResultField<Result>;
  std::string text;
  for (const Field& field : result_fields<Result>())
    if (field.is_in(Field::Record) && (passes == 1 || !field.is_in(Field::PerPass)))
      text += metric_line(field.title, shown(field, result), field.help);
  return text;
}

/// A line on the depths of all channels; empty without channels.
[[nodiscard]] std::string depths_text(const std::vector<ChannelCapacity>& channels);

/// Source, destination, direction, minimal and sufficient depth of each channel.
[[nodiscard]] nlohmann::json to_json(const std::vector<ChannelCapacity>& channels);

/// "rule 5 (order), rank 1, action 3 (1B0): message".
[[nodiscard]] std::string to_string(const Violation& violation, const Program& program);

/// compare PLAN TRACE (compare_trace.cpp): simulates `plan` with the given costs, or with the
/// trace's mean times when none are given, and prints both timelines: makespan, bubble, what every
/// op of every stage and rank took and when it started. Throws InvalidArgument or DataError for a
/// bad option or file.
void compare_with_trace(const std::string& plan,
                        const std::string& trace,
                        const PlanOptions& options);

}  // namespace millrace::cli
