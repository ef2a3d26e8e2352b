// Costs from the options: every time a whole number of ticks where the typed decimals allow it.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>

#include "cli/files.hpp"
#include "cli/plan/options.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

// How one stage of the shape relates to a full stage of a p-stage model: share / parts of it.
struct Portion {
  int share = 1;
  int parts = 1;
  int ranks = 1;
  int stages = 1;
};

Portion portion_of(const Shape& shape, bool chunk_costs) {
  const int common = chunk_costs ? 1 : std::gcd(shape.ranks, shape.stages());
  if (chunk_costs) return {1, 1, shape.ranks, shape.stages()};
  return {shape.ranks / common, shape.stages() / common, shape.ranks, shape.stages()};
}

// The value of a stage from a list of 1, p or S values.
double value_at(const NumberList& list, int stage, const Portion& portion) {
  const std::size_t size = list.values.size();
  if (size == 1) return list.values.front();
  if (size == static_cast<std::size_t>(portion.stages))
    return list.values[static_cast<std::size_t>(stage)];
  return list
      .values[static_cast<std::size_t>(std::int64_t{stage} * portion.ranks / portion.stages)];
}

// Undoes the rounding of the decimal point's shift.
double whole_if_near(double value) {
  return std::abs(value - std::round(value)) < 1e-6 ? std::round(value) : value;
}

void require_length(const char* option, const NumberList& list, const Portion& portion) {
  const std::size_t size = list.values.size();
  require(size == 1 || size == static_cast<std::size_t>(portion.ranks) ||
              size == static_cast<std::size_t>(portion.stages),
          std::string(option) + " has " + std::to_string(size) +
              " values; allowed are 1, p = " + std::to_string(portion.ranks) +
              " or one per stage, " + std::to_string(portion.stages));
}

// How the slices share a stage's times: whole numbers with their sum, which the ticks divide by.
struct SliceShares {
  std::vector<double> shares;
  double sum = 0;
};

SliceShares slice_shares(const PlanOptions& options, int slices) {
  if (!options.slice_costs || slices == 1)
    return {std::vector<double>(static_cast<std::size_t>(slices), 1), static_cast<double>(slices)};
  const NumberList& list = *options.slice_costs;
  require(list.values.size() == static_cast<std::size_t>(slices),
          "--slice-costs has " + value_count(list.values.size()) +
              "; the schedule has q = " + std::to_string(slices) + " slices");
  SliceShares result;
  for (const double value : list.values) {
    result.shares.push_back(whole_if_near(value * std::pow(10, list.decimals)));
    result.sum += result.shares.back();
  }
  require(result.sum > 0, "--slice-costs are all 0; at least one slice takes time");
  return result;
}

std::vector<double> times(const char* option,
                          const NumberList& list,
                          const Portion& portion,
                          double scale,
                          const SliceShares& slices) {
  require_length(option, list, portion);
  std::vector<double> ticks;
  for (int stage = 0; stage < portion.stages; ++stage) {
    const double whole = whole_if_near(value_at(list, stage, portion) * scale) * portion.share;
    for (const double share : slices.shares) ticks.push_back(whole * share);
  }
  return ticks;
}

std::vector<double> memory(const char* option, const NumberList& list, const Portion& portion) {
  require_length(option, list, portion);
  std::vector<double> values;
  for (int stage = 0; stage < portion.stages; ++stage)
    values.push_back(value_at(list, stage, portion) * portion.share / portion.parts);
  return values;
}

/// The input of a stage does not get smaller by cutting the model into more of them.
std::vector<double> boundaries(const PlanOptions& options, const Portion& portion) {
  require_length("--mem-boundary", options.memory_boundary, portion);
  std::vector<double> values;
  for (int stage = 0; stage < portion.stages; ++stage)
    values.push_back(value_at(options.memory_boundary, stage, portion));
  return values;
}

void set_memory(Cost& cost, const PlanOptions& options, const Portion& portion) {
  cost.memory_boundary = boundaries(options, portion);
  cost.memory_forward = memory("--mem-f", options.memory_forward, portion);
  cost.memory_input = memory("--mem-i", options.memory_input, portion);
  const auto stages = static_cast<std::size_t>(portion.stages);
  cost.memory_weight.assign(stages, 0);
  if (options.memory_weight)
    cost.memory_weight = memory("--mem-w", *options.memory_weight, portion);
  for (std::size_t s = 0; s < stages; ++s) {
    // What the output gradients kept for W add before I frees its own part: at least this.
    cost.memory_input_peak.push_back(std::max(0.0, cost.memory_input[s]));
    if (!options.memory_weight)
      cost.memory_weight[s] = -cost.memory_forward[s] - cost.memory_input[s];
  }
}

void set_atomic_pairs(Cost& cost) {
  const auto uniform = [](const std::vector<double>& ticks) {
    return std::all_of(ticks.begin(), ticks.end(), [&](double t) { return t == ticks.front(); });
  };
  require(uniform(cost.forward) && uniform(cost.backward_input) && uniform(cost.backward_weight),
          "--atomic-pairs needs stages of equal cost: a pair has one time");
  cost.pair = cost.forward.front() + cost.backward_input.front() + cost.backward_weight.front();
}

void set_pair_cost(Cost& cost, const PlanOptions& options, const Shape& shape) {
  require(!options.atomic_pairs,
          "--atomic-pairs and --pair-cost both say how long a pair takes; leave one of them out");
  const Portion portion = portion_of(shape, options.chunk_costs);
  cost.pair = whole_if_near(options.pair_cost->values.front() * portion.share / portion.parts *
                            cost.ticks_per_unit / cost.slices);
}

Cost typed_cost(const Shape& shape, const PlanOptions& options) {
  const Portion portion = portion_of(shape, options.chunk_costs);
  const int decimals = std::max({options.forward.decimals,
                                 options.input.decimals,
                                 options.weight.decimals,
                                 options.recompute_time ? options.recompute_time->decimals : 0,
                                 options.latency ? options.latency->decimals : 0,
                                 options.pair_cost ? options.pair_cost->decimals : 0});
  const double scale = std::pow(10, decimals);
  Cost cost;
  cost.slices = shape.slices;
  const SliceShares slices = slice_shares(options, shape.slices);
  cost.ticks_per_unit = scale * portion.parts * slices.sum;
  cost.forward = times("--f", options.forward, portion, scale, slices);
  cost.backward_input = times("--i", options.input, portion, scale, slices);
  cost.backward_weight = times("--w", options.weight, portion, scale, slices);
  if (options.recompute_time)
    cost.recompute = times("--r", *options.recompute_time, portion, scale, slices);
  set_links(cost, options, shape.ranks);
  set_memory(cost, options, portion);
  return cost;
}

Cost fitted(const CostFile& file, const Shape& shape, const std::string& path) {
  try {
    return costs_for(file, shape);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("--costs " + path + ": " + error.what());
  }
}

Cost filed_cost(const Shape& shape, const PlanOptions& options) {
  Cost cost = fitted(cost_file_of(options), shape, options.costs_file);
  if (cost.memory_forward.empty()) set_memory(cost, options, portion_of(shape, false));
  set_links(cost, options, shape.ranks);
  return cost;
}

}  // namespace

CostFile cost_file_of(const PlanOptions& options) {
  const std::string& path = options.costs_file;
  ParsedCosts read = read_costs(read_file("--costs", path));
  if (!read.costs) throw DataError(path + ":" + to_string(read.diagnostics.front()));
  std::vector<std::string> typed = options.typed_costs;
  if (options.chunk_costs) typed.emplace_back("--chunk-costs");
  for (const std::string& option : typed) {
    const bool missing = option.starts_with("--mem-") && read.costs->cost.memory_forward.empty();
    require(missing,
            option + " was given, but --costs " + path + " says it; leave one of them out");
  }
  return std::move(*read.costs);
}

Cost cost_of(const Shape& shape, const PlanOptions& options) {
  Cost cost = options.costs_file.empty() ? typed_cost(shape, options) : filed_cost(shape, options);
  if (options.pair_cost)
    set_pair_cost(cost, options, shape);
  else if (options.atomic_pairs)
    set_atomic_pairs(cost);
  cost.cores = options.cores;
  return cost;
}

Timeline timeline_of(const Graph& graph, const Cost& cost) {
  auto result = simulate(graph, cost);
  if (auto* timeline = std::get_if<Timeline>(&result)) return std::move(*timeline);
  std::cerr << "millrace: the schedule cannot proceed: " << std::get<Deadlock>(result).sentence()
            << '\n';
  throw ExitCode{1};
}

}  // namespace millrace::cli
