// Refusals of options that no schedule, or not this one, can take.
#include "plan/schedules/options.hpp"

#include <cstdint>
#include <fmt/format.h>

#include "plan/text/number_text.hpp"

namespace millrace::generators {

namespace {

constexpr std::int64_t kMostForwards = std::int64_t{1} << 27;

/// Names of the schedules that take the parameter: "interleaved, bfs, ...".
std::string names_with(std::string_view parameter) {
  std::string names;
  for (const ScheduleEntry& entry : schedules())
    if (entry.takes(parameter)) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

/// The value of a count; none where it is unset or no count.
std::optional<int> count_of(const ScheduleParameter& parameter, const ScheduleOptions& options) {
  if (const auto* field = std::get_if<int ScheduleOptions::*>(&parameter.field))
    return options.**field;
  if (const auto* field = std::get_if<std::optional<int> ScheduleOptions::*>(&parameter.field))
    return options.**field;
  return std::nullopt;
}

/// How many forwards the value of the parameter multiplies the program by.
std::int64_t forwards_of(const ScheduleParameter& parameter, const ScheduleOptions& options) {
  if (parameter.forwards == 0) return 1;
  return std::int64_t{parameter.forwards} * count_of(parameter, options).value_or(1);
}

/// Whether the stages or ranks may differ.
bool may_differ(const Costs& costs) {
  const auto several = [&](auto list) { return (costs.*list).size() > 1; };
  return costs.file || costs.stages > 0 || !costs.rank_speed.empty() || several(&Costs::forward) ||
         several(&Costs::input) || several(&Costs::weight) || several(&Costs::memory_forward) ||
         several(&Costs::memory_input) || several(&Costs::memory_weight);
}

/// A generator orders the stages for a core per rank, for one replica and one accumulation step.
Cost costs_of_ranks(const ScheduleOptions& options, const Costs& costs) {
  Cost cost = cost_of({.ranks = options.ranks,
                       .micro_batches = options.micro_batches,
                       .placement = Placement::straight(options.ranks)},
                      costs);
  cost.cores = 0;
  cost.data_parallel = cost.passes = 1;
  cost.gradient_bytes.clear();
  return cost;
}

/// What the schedule has instead of the parameter.
std::string instead(const ScheduleParameter& parameter,
                    const ScheduleEntry& entry,
                    const ScheduleOptions& options) {
  if (parameter.name != "chunks") return "";
  return ", always " + std::to_string(chunks_of(entry, options));
}

}  // namespace

Request request_of(const ScheduleEntry& entry, const ScheduleOptions& options, const Costs& costs) {
  require_consistent(costs);
  require(costs.slice_costs.empty() || entry.takes("slices"),
          named("slice_costs") +
              fmt::format(" was given, but schedule '{}' has no slices", entry.name));
  Request request{options};
  request.mean = mean_stage(costs, costs.chunk_costs ? chunks_of(entry, options) : 1);
  if (entry.staged && may_differ(costs)) request.stages = costs_of_ranks(options, costs);
  return request;
}

Request with_defaults(const ScheduleEntry& entry, const Request& options) {
  Request filled = options;
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (!entry.takes(parameter.name)) clear_value(filled, parameter);  // said although it is so
  if (entry.takes("chunks")) filled.chunks = chunks_of(entry, options);
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (const auto* field = std::get_if<std::optional<int> ScheduleOptions::*>(&parameter.field);
        field != nullptr && entry.takes(parameter.name) && !(filled.**field))
      filled.** field = parameter.preset;
  if (entry.slice_each_rank && !options.slices) filled.slices = options.ranks;
  return filled;
}

void require_even_ranks(const Request& options) {
  require(options.ranks % 2 == 0,
          named("ranks") + " is " + std::to_string(options.ranks) +
              "; a bidirectional pipeline works with an even number");
}

void require_full_rounds(std::string_view schedule, const Request& options) {
  const int ranks = options.ranks, rounds = options.micro_batches / ranks;
  require(options.micro_batches % ranks == 0,
          given("micro_batches", options.micro_batches, options) + "; " + std::string(schedule) +
              " works with multiples of p: " +
              (rounds == 0 ? "" : std::to_string(rounds * ranks) + " or ") +
              std::to_string((rounds + 1) * ranks));
}

void require_order_found(bool found, const Request& options) {
  require(found,
          named("memory_limit") + " is " + plan::number_text(memory_limit_of(options)) +
              "; no order was found under it, " + named("ranks") + " x " + named("memory_forward") +
              " = " + plan::number_text(options.ranks * options.mean.memory_forward) + " works");
}

void require_counts(const ScheduleOptions& options) {
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (const auto value = count_of(parameter, options))
      require(*value >= parameter.least,
              named(parameter.name) + " is " + std::to_string(*value) + "; " +
                  std::string(parameter.noun) + " is at least " + std::to_string(parameter.least));

  // Each factor is under 2^33 and the product is compared as it grows, so nothing overflows.
  std::int64_t forwards = 1;
  for (const ScheduleParameter& parameter : kScheduleParameters) {
    forwards = std::min(forwards * forwards_of(parameter, options), kMostForwards + 1);
    require(forwards <= kMostForwards,
            named("ranks") + " " + std::to_string(options.ranks) + " and " +
                named("micro_batches") + " " + std::to_string(options.micro_batches) +
                " need more than " + std::to_string(kMostForwards) +
                " forwards; smaller counts fit in memory");
  }
}

void require_known_options(const ScheduleEntry& entry, const ScheduleOptions& options) {
  for (const ScheduleParameter& parameter : kScheduleParameters) {
    const auto value = value_of(options, parameter);
    require(!value || agrees(entry, options, parameter.name),
            named(parameter.name) + " " + value.value_or("") + " was given, but schedule '" +
                std::string(entry.name) + "' has no " + std::string(parameter.lacked) +
                instead(parameter, entry, options) + "; these have: " + names_with(parameter.name));
  }
}

}  // namespace millrace::generators
