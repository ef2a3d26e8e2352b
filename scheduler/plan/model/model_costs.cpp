// Costs of a shape from those of a model: every time a whole number of ticks where the given
// decimals allow it.
#include "millrace/scheduler/plan/model_costs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/cost_members.hpp"
#include "plan/model/model_links.hpp"
#include "plan/text/number_text.hpp"

namespace millrace {

namespace {

/// A list under its name, for sentences.
struct NamedList {
  const char* name;
  std::vector<double> values;
};

NamedList named_list(const char* name, const std::vector<double>& values, double otherwise) {
  return {name, values.empty() ? std::vector<double>{otherwise} : values};
}

void require_values(const ModelCosts& costs) {
  constexpr double most = 1e15;  // beyond it ticks would not be whole numbers any more
  for (const auto& [name, list] : kCostLists)
    for (const double value : costs.*list) {
      const bool may_be_negative =
          std::string_view(name).starts_with("memory_") && list != &ModelCosts::memory_boundary;
      const double least = may_be_negative ? -most : 0;
      require(value >= least && value <= most,
              named(name) + (" holds " + plan::number_text(value) + "; expected numbers from " +
                             plan::number_text(least) + " to " + plan::number_text(most)));
    }
}

// How one stage of the shape relates to a full stage of a p-stage model: share / parts of it.
struct Portion {
  int share = 1;
  int parts = 1;
  int ranks = 1;
  int stages = 1;
};

Portion portion_of(const Shape& shape, bool chunk_costs) {
  if (chunk_costs) return {1, 1, shape.ranks, shape.stages()};
  const int both = std::gcd(shape.ranks, shape.stages());
  return {shape.ranks / both, shape.stages() / both, shape.ranks, shape.stages()};
}

// The value of a stage from a list of 1, p or S values.
double value_at(const NamedList& list, int stage, const Portion& portion) {
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

/// How many decimals a number has, at most 9.
int decimals_of(double value) {
  double power = 1;
  for (int decimals = 0; decimals < 9; ++decimals, power *= 10) {
    const double scaled = value * power;
    if (std::abs(scaled - std::round(scaled)) <= 1e-12 * std::abs(scaled)) return decimals;
  }
  return 9;
}

int decimals_of(const std::vector<double>& values) {
  int most = 0;
  for (const double value : values) most = std::max(most, decimals_of(value));
  return most;
}

void require_stages(const NamedList& list, const Portion& portion) {
  const std::size_t size = list.values.size();
  require(size == 1 || size == static_cast<std::size_t>(portion.ranks) ||
              size == static_cast<std::size_t>(portion.stages),
          named(list.name) + (" has " + plan::value_count(size) +
                              "; allowed are 1, p = " + std::to_string(portion.ranks) +
                              " or one per stage, " + std::to_string(portion.stages)));
}

// How the slices share a stage's times: whole numbers with their sum, which the ticks divide by.
struct SliceShares {
  std::vector<double> shares;
  double sum = 0;
};

SliceShares slice_shares(const ModelCosts& costs, int slices) {
  const std::vector<double>& list = costs.slice_costs;
  if (list.empty() || slices == 1)
    return {std::vector<double>(static_cast<std::size_t>(slices), 1), static_cast<double>(slices)};
  require(list.size() == static_cast<std::size_t>(slices),
          named("slice_costs") + (" has " + plan::value_count(list.size()) +
                                  "; the schedule has q = " + std::to_string(slices) + " slices"));
  SliceShares result;
  const double scale = std::pow(10, decimals_of(list));
  for (const double value : list) {
    result.shares.push_back(whole_if_near(value * scale));
    result.sum += result.shares.back();
  }
  require(result.sum > 0, named("slice_costs") + " are all 0; at least one slice takes time");
  return result;
}

std::vector<double> times(const NamedList& list,
                          const Portion& portion,
                          double scale,
                          const SliceShares& slices) {
  require_stages(list, portion);
  std::vector<double> ticks;
  for (int stage = 0; stage < portion.stages; ++stage) {
    const double whole = whole_if_near(value_at(list, stage, portion) * scale) * portion.share;
    for (const double share : slices.shares) ticks.push_back(whole * share);
  }
  return ticks;
}

/// `parts`: of a full stage; 1 for what does not get smaller by cutting the model into more stages.
std::vector<double> memory(const NamedList& list, const Portion& portion, double part) {
  require_stages(list, portion);
  std::vector<double> values;
  for (int stage = 0; stage < portion.stages; ++stage)
    values.push_back(value_at(list, stage, portion) * part);
  return values;
}

void set_memory(Cost& cost, const ModelCosts& costs, const Portion& portion) {
  const auto changes = [&](const char* name, const std::vector<double>& given, double otherwise) {
    const NamedList list = named_list(name, given, otherwise);
    std::vector<double> values = memory(list, portion, portion.share);
    for (double& value : values) value /= portion.parts;
    return values;
  };
  cost.memory_boundary =
      memory(named_list("memory_boundary", costs.memory_boundary, 0), portion, 1);
  cost.memory_forward = changes("memory_forward", costs.memory_forward, 1);
  cost.memory_input = changes("memory_input", costs.memory_input, 0);
  cost.memory_weight = changes("memory_weight", costs.memory_weight, 0);
  for (std::size_t s = 0; s < cost.memory_weight.size(); ++s) {
    // What the output gradients kept for W add before I frees its own part: at least this.
    cost.memory_input_peak.push_back(std::max(0.0, cost.memory_input[s]));
    if (costs.memory_weight.empty())
      cost.memory_weight[s] = -cost.memory_forward[s] - cost.memory_input[s];
  }
}

/// Of a step, which has up to a billion micro-batches in all.
void set_passes(Cost& cost, const ModelCosts& costs, const Shape& shape) {
  const int most = std::max(1, 1'000'000'000 / std::max(1, shape.micro_batches));
  require(costs.accumulate >= 1 && costs.accumulate <= most,
          named("accumulate") + (" is " + std::to_string(costs.accumulate) + "; a step has 1 to " +
                                 std::to_string(most) + " passes of " +
                                 std::to_string(shape.micro_batches) + " micro-batches"));
  cost.passes = costs.accumulate;
}

bool uses_gradients(const ModelCosts& costs, const Shape& shape) {
  return costs.data_parallel > 1 || costs.tree_of_sums || shape.replicas() > 1;
}

/// Of the sums over copies of the pipeline.
void set_gradients(Cost& cost, const ModelCosts& costs, const Shape& shape) {
  require(costs.data_parallel >= 1,
          named("data_parallel") + (" is " + std::to_string(costs.data_parallel) +
                                    "; a pipeline is trained in 1 copy or more"));
  require(!costs.tree_of_sums || shape.replicas() == 1,
          named("tree_of_sums") + " is of pipelines with one copy of every stage; this one has " +
              std::to_string(shape.replicas()));
  cost.data_parallel = costs.data_parallel;
  cost.tree_of_sums = costs.tree_of_sums;
  if (costs.gradient_bytes.empty()) return;
  if (!uses_gradients(costs, shape))
    throw InvalidParameter(named("gradient_bytes") + " is given without " + named("data_parallel") +
                           " and without " + named("tree_of_sums") +
                           "; copies of the pipeline and of its stages add gradients over links, "
                           "and a tree of sums keeps some");
  const Portion portion = portion_of(shape, costs.chunk_costs);
  cost.gradient_bytes = memory({"gradient_bytes", costs.gradient_bytes}, portion, portion.share);
  for (double& bytes : cost.gradient_bytes) bytes /= portion.parts;
}

void set_atomic_pairs(Cost& cost) {
  const auto uniform = [](const std::vector<double>& ticks) {
    return std::all_of(ticks.begin(), ticks.end(), [&](double t) { return t == ticks.front(); });
  };
  require(uniform(cost.forward) && uniform(cost.backward_input) && uniform(cost.backward_weight),
          named("atomic_pairs") + " needs stages of equal cost: a pair has one time");
  cost.pair = cost.forward.front() + cost.backward_input.front() + cost.backward_weight.front();
}

void set_pair_cost(Cost& cost, const ModelCosts& costs, const Shape& shape) {
  require(!costs.atomic_pairs,
          named("atomic_pairs") + " and " + named("pair_cost") +
              " both say how long a pair takes; leave one of them out");
  const Portion portion = portion_of(shape, costs.chunk_costs);
  cost.pair = whole_if_near(*costs.pair_cost * portion.share / portion.parts * cost.ticks_per_unit /
                            cost.slices);
}

Cost said_cost(const Shape& shape, const ModelCosts& costs) {
  const Portion portion = portion_of(shape, costs.chunk_costs);
  const int decimals = std::max({decimals_of(costs.forward),
                                 decimals_of(costs.input),
                                 decimals_of(costs.weight),
                                 decimals_of(costs.recompute_time),
                                 decimals_of(costs.latency),
                                 costs.pair_cost ? decimals_of(*costs.pair_cost) : 0});
  const double scale = std::pow(10, decimals);
  const auto ticks = [&, slices = slice_shares(costs, shape.slices)](
                         const char* name, const std::vector<double>& list) {
    return times(named_list(name, list, 1), portion, scale, slices);
  };
  Cost cost;
  cost.slices = shape.slices;
  cost.ticks_per_unit = scale * portion.parts * slice_shares(costs, shape.slices).sum;
  cost.forward = ticks("forward", costs.forward);
  cost.backward_input = ticks("input", costs.input);
  cost.backward_weight = ticks("weight", costs.weight);
  if (!costs.recompute_time.empty()) cost.recompute = ticks("recompute_time", costs.recompute_time);
  plan::set_links(cost, costs, shape.ranks);
  set_memory(cost, costs, portion);
  return cost;
}

Cost filed_cost(const Shape& shape, const ModelCosts& costs) {
  require_said_once(costs);
  Cost cost;
  try {
    cost = costs_for(*costs.file, shape);
  } catch (const InvalidArgument& error) {
    throw InvalidParameter(named("costs") + (" " + costs.file_name + ": ") + parameter_text(error));
  }
  if (cost.memory_forward.empty()) set_memory(cost, costs, portion_of(shape, false));
  plan::set_links(cost, costs, shape.ranks);
  return cost;
}

}  // namespace

bool ModelCosts::says_times_or_memory() const {
  return std::any_of(kCostLists.begin(), kCostLists.end(), [this](const auto& it) {
    return it.member != &ModelCosts::gradient_bytes && !(this->*it.member).empty();
  });
}

void require_said_once(const ModelCosts& costs) {
  if (!costs.file) return;
  const auto refuse = [&](const char* name) {
    throw InvalidParameter(named(name) + " was given, but " + named("costs") + " " +
                           costs.file_name + " says it; leave one of them out");
  };
  for (const auto& [name, list] : kCostLists) {
    const bool of_memory = std::string_view(name).starts_with("memory_");
    const Cost& said = costs.file->cost;
    const bool missing = of_memory
                             ? said.memory_forward.empty()
                             : list == &ModelCosts::gradient_bytes && said.gradient_bytes.empty();
    if (!(costs.*list).empty() && !missing) refuse(name);
  }
  if (costs.chunk_costs) refuse("chunk_costs");
}

void require_memory(const ModelCosts& costs) {
  if (!costs.file || !costs.file->cost.memory_forward.empty()) return;
  require(!costs.memory_forward.empty() || !costs.memory_input.empty() ||
              !costs.memory_weight.empty() || !costs.memory_boundary.empty(),
          named("memory_limit") + " was given, but " + named("costs") + " " + costs.file_name +
              " says nothing about memory; give " + named("memory_forward") + ", " +
              named("memory_input") + " and " + named("memory_weight") +
              " with it, or memory_forward, memory_input and memory_weight in the file");
}

ModelCosts costs_that_apply(const ModelCosts& costs, const Shape& shape) {
  ModelCosts applying = costs;
  if (costs.gradient_bytes.empty() || uses_gradients(costs, shape)) return applying;
  applying.gradient_bytes.clear();
  if (!costs.message_bytes) applying.bandwidth.clear();
  return applying;
}

Cost cost_of(const Shape& shape, const ModelCosts& costs) {
  require_values(costs);
  Cost cost = costs.file ? filed_cost(shape, costs) : said_cost(shape, costs);
  if (costs.pair_cost)
    set_pair_cost(cost, costs, shape);
  else if (costs.atomic_pairs)
    set_atomic_pairs(cost);
  cost.cores = costs.cores;
  set_gradients(cost, costs, shape);
  set_passes(cost, costs, shape);
  return cost;
}

double memory_of_all(const ModelCosts& costs, int ranks, int stages) {
  if (costs.file && !costs.file->cost.memory_forward.empty()) {
    const std::vector<double>& memory = costs.file->cost.memory_forward;
    return std::accumulate(memory.begin(), memory.end(), 0.0);
  }
  const NamedList memory = named_list("memory_forward", costs.memory_forward, 1);
  const double sum = std::accumulate(memory.values.begin(), memory.values.end(), 0.0);
  return sum / static_cast<double>(memory.values.size()) * (costs.chunk_costs ? stages : ranks);
}

}  // namespace millrace
