// What a generator hears of a model's costs: the means, and each stage's where stages differ.
#include <numeric>

#include "millrace/scheduler/plan/model_costs.hpp"
#include "millrace/scheduler/plan/sweep.hpp"

namespace millrace {

namespace {

double mean_of(const std::vector<double>& list, double otherwise) {
  if (list.empty()) return otherwise;
  return std::accumulate(list.begin(), list.end(), 0.0) / static_cast<double>(list.size());
}

/// What a generator takes of a cost file: the mean full stage.
void set_means_of_file(ScheduleOptions& options, const ModelCosts& costs) {
  const SweepCosts mean = sweep_costs(*costs.file, costs.file_name);
  options.forward = mean.forward;
  options.input = mean.input;
  options.weight = mean.weight;
  if (costs.latency.empty()) options.latency = mean.latency;
  if (costs.file->cost.memory_forward.empty()) return;
  options.memory_forward = mean.memory_forward;
  options.memory_input = mean.memory_input;
  options.memory_weight = mean.memory_weight;
  options.memory_input_peak = mean.memory_input_peak;
}

/// It orders the stages for a processor per rank, for one copy of the pipeline and for one pass.
Cost costs_of_stages(const ScheduleOptions& options, const ModelCosts& costs) {
  Cost cost = cost_of({.ranks = options.ranks,
                       .micro_batches = options.micro_batches,
                       .placement = Placement::straight(options.ranks)},
                      costs);
  cost.cores = 0;
  cost.data_parallel = cost.passes = 1;
  cost.gradient_bytes.clear();
  return cost;
}

/// Whether the stages or ranks may differ.
bool may_differ(const ModelCosts& costs) {
  const auto several = [](const std::vector<double>& list) { return list.size() > 1; };
  return costs.file || !costs.rank_speed.empty() || several(costs.forward) ||
         several(costs.input) || several(costs.weight) || several(costs.memory_forward) ||
         several(costs.memory_input) || several(costs.memory_weight);
}

}  // namespace

ScheduleOptions with_costs(const ScheduleEntry& entry,
                           ScheduleOptions options,
                           const ModelCosts& costs) {
  require_said_once(costs);
  const int chunks = costs.chunk_costs ? chunks_of(entry, options) : 1;
  options.latency = mean_of(costs.latency, 0);
  options.forward = mean_of(costs.forward, 1) * chunks;
  options.input = mean_of(costs.input, 1) * chunks;
  options.weight = mean_of(costs.weight, 1) * chunks;
  options.memory_forward = mean_of(costs.memory_forward, 1) * chunks;
  options.memory_input = mean_of(costs.memory_input, 0) * chunks;
  options.memory_weight = costs.memory_weight.empty()
                              ? -options.memory_forward - options.memory_input
                              : mean_of(costs.memory_weight, 0) * chunks;
  if (costs.file) set_means_of_file(options, costs);
  if (entry.staged && may_differ(costs)) options.stage_costs = costs_of_stages(options, costs);
  return options;
}

Program generate(std::string_view name, const ScheduleOptions& options, const ModelCosts& costs) {
  const ScheduleEntry& entry = find_schedule(name);
  require(
      costs.slice_costs.empty() || entry.takes("slices"),
      named("slice_costs") + " was given, but schedule '" + std::string(name) + "' has no slices");
  return generate(name, with_costs(entry, options, costs));
}

}  // namespace millrace
