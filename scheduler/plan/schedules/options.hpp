// Checks of ScheduleOptions that several families share. Every message names the parameter,
// the value that was given, and what works.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// The options of one call of a generator, with the costs as it reads them.
struct Request : ScheduleOptions {
  MeanStage mean = {};
  /// Costs of each stage, where stages or ranks may differ, for the entries with `staged`, which
  /// then keep the limit on every rank.
  std::optional<Cost> stages = {};
};

/// The options with the means of the costs, and with those of each stage where the entry takes
/// them.
[[nodiscard]] Request request_of(const ScheduleEntry& entry,
                                 const ScheduleOptions& options,
                                 const Costs& costs);

/// As millrace::generate.
[[nodiscard]] Program generate(const ScheduleEntry& entry, const Request& request);

/// "micro_batches is 6 with ranks 4": how a refusal opens.
inline ParameterText given(std::string_view name, int value, const ScheduleOptions& options) {
  return named(name) + " is " + std::to_string(value) + " with " + named("ranks") + " " +
         std::to_string(options.ranks);
}

/// The options with the counts that the schedule takes filled in.
[[nodiscard]] Request with_defaults(const ScheduleEntry& entry, const Request& request);

/// What a rank may hold: the limit that was given, else p forwards, as many as 1F1B holds.
inline double memory_limit_of(const Request& options) {
  return options.memory_limit.value_or(options.ranks * options.mean.memory_forward);
}

/// What an I takes only while it runs, beyond what it leaves: under a limit, room for it stays
/// free.
inline double passing_memory(double input_peak, double input) {
  return std::max(0.0, input_peak - std::max(0.0, input));
}
/// The same of an I or F.
inline double passing_memory(const Request& options) {
  const MeanStage& mean = options.mean;
  return std::max(passing_memory(mean.memory_input_peak.value_or(0), mean.memory_input),
                  mean.memory_forward_peak - mean.memory_forward);
}

/// Throws unless p is even, as a pipeline of two replicas needs.
void require_even_ranks(const Request& options);

/// Throws unless m is a multiple of p.
void require_full_rounds(std::string_view schedule, const Request& options);

/// Throws when a search under that limit found no order.
void require_order_found(bool found, const Request& options);

/// Throws unless the counts are in their range and the program is of a size that can be held.
void require_counts(const ScheduleOptions& options);

/// Throws when an option is set that the schedule does not have.
void require_known_options(const ScheduleEntry& entry, const ScheduleOptions& options);

}  // namespace millrace::generators
