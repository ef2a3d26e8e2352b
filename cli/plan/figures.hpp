// The figures of one schedule, gathered once for simulate and compare, as text and as JSON.
#pragma once

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

/// name, p, m, v, q and which stages recompute: what schedule the figures beside it are of.
[[nodiscard]] nlohmann::json identity_json(const Program& program);

/// The numbers that a result lists, by name.
template <class Result>
[[nodiscard]] nlohmann::json record_json(const Result& result) {
  nlohmann::json all = nlohmann::json::object();
  for (const ResultField<Result>& field : result_fields<Result>())
    if (field.is_in(ResultField<Result>::Record)) all[field.name] = field.of(result);
  return all;
}

/// A number as tables have it: "4.5", shares as "27.27 %".
template <class Result>
[[nodiscard]] std::string shown(const ResultField<Result>& field, const Result& result) {
  const double value = field.of(result);
  return field.unit == ResultField<Result>::Unit::Share ? percent(value) : plain(value);
}

/// "order", "weight after input".
[[nodiscard]] std::string name_of(Rule rule);

/// Source, destination, direction, minimal and sufficient depth of each channel.
[[nodiscard]] nlohmann::json to_json(const std::vector<ChannelCapacity>& channels);

/// "rule 5 (order), rank 1, action 3 (1B0): sentence".
[[nodiscard]] std::string to_string(const Violation& violation, const Program& program);

}  // namespace millrace::cli
