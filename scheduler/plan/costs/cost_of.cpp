// Costs of a shape: every time a whole number of ticks where the given decimals allow it.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <numeric>
#include <utility>

#include "millrace/core/error.hpp"
#include "plan/costs/costs.hpp"

namespace millrace {

namespace {

/// A list under its name, for messages.
struct NamedList {
  const char* name;
  std::vector<double> values;
};

NamedList named_list(const char* name, const std::vector<double>& values, double otherwise) {
  return {name, values.empty() ? std::vector<double>{otherwise} : values};
}

std::string value_count(std::size_t values) {
  return fmt::format("{} value{}", values, values == 1 ? "" : "s");
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
          named(list.name) + fmt::format(" has {}; allowed are 1, p = {} or one per stage, {}",
                                         value_count(size),
                                         portion.ranks,
                                         portion.stages));
}

// How the slices share a stage's times: whole numbers with their sum, which the ticks divide by.
struct SliceShares {
  std::vector<double> shares;
  double sum = 0;
};

SliceShares slice_shares(const Costs& costs, int slices) {
  const std::vector<double>& list = costs.slice_costs;
  if (list.empty() || slices == 1)
    return {std::vector<double>(static_cast<std::size_t>(slices), 1), static_cast<double>(slices)};
  require(
      list.size() == static_cast<std::size_t>(slices),
      named("slice_costs") +
          fmt::format(" has {}; the schedule has q = {} slices", value_count(list.size()), slices));
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

void set_memory(Cost& cost, const Costs& costs, const Portion& portion) {
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
void set_passes(Cost& cost, const Costs& costs, const Shape& shape) {
  const int most = std::max(1, 1'000'000'000 / std::max(1, shape.micro_batches));
  require(costs.accumulate >= 1 && costs.accumulate <= most,
          named("accumulate") + fmt::format(" is {}; a step has 1 to {} passes of {} micro-batches",
                                            costs.accumulate,
                                            most,
                                            shape.micro_batches));
  cost.passes = costs.accumulate;
}

bool uses_gradients(const Costs& costs, const Shape& shape) {
  return costs.data_parallel > 1 || costs.tree_of_sums || shape.replicas() > 1;
}

/// Of the gradient all-reduces.
void set_gradients(Cost& cost, const Costs& costs, const Shape& shape) {
  require(costs.data_parallel >= 1,
          named("data_parallel") + fmt::format(" is {}; it is at least 1", costs.data_parallel));
  require(
      !costs.tree_of_sums || shape.replicas() == 1,
      named("tree_of_sums") +
          fmt::format(" needs one replica of every stage; this pipeline has {}", shape.replicas()));
  cost.data_parallel = costs.data_parallel;
  cost.tree_of_sums = costs.tree_of_sums;
  if (costs.gradient_bytes.empty() || costs.stages > 0) return;
  if (!uses_gradients(costs, shape))
    throw InvalidParameter(named("gradient_bytes") + " is given without " + named("data_parallel") +
                           " and without " + named("tree_of_sums") +
                           "; only these add gradients of several replicas, or keep sums");
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
  const double ticks =
      cost.forward.front() + cost.backward_input.front() + cost.backward_weight.front();
  cost.pair.set(Op::Forward, Op::Backward, ticks);
  cost.pair.set(Op::Forward, Op::BackwardInput, ticks);
}

/// A time of overlapped pairs, and the other half of an F that it is of.
struct PairMember {
  std::optional<double> Costs::*time;
  Op other;
};

constexpr std::array kPairs = {PairMember{&Costs::pair_cost, Op::Backward},
                               PairMember{&Costs::pair_cost, Op::BackwardInput},
                               PairMember{&Costs::pair_input, Op::BackwardInput},
                               PairMember{&Costs::pair_weight, Op::BackwardWeight},
                               PairMember{&Costs::pair_forward, Op::Forward}};

void set_pair_costs(Cost& cost, const Costs& costs, const Shape& shape) {
  const Portion portion = portion_of(shape, costs.chunk_costs);
  const double full = cost.ticks_per_unit * portion.share / portion.parts / cost.slices;
  // A file may be of other ranks with as many stages: its full stage is what one of them has.
  const double of_file = costs.file ? full * costs.file->ranks / shape.ranks : full;
  for (const auto& [time, other] : kPairs) {
    if (costs.*time)
      cost.pair.set(Op::Forward, other, whole_if_near(*(costs.*time) * full));
    else if (costs.file && (*costs.file).*time)
      cost.pair.set(Op::Forward, other, whole_if_near(*((*costs.file).*time) * of_file));
  }
}

void require_links(const char* name, const std::vector<double>& list, std::size_t ranks) {
  require(list.size() == 1 || list.size() == ranks * ranks,
          named(name) +
              fmt::format(" has {}; allowed are 1 or one per ordered pair of ranks, p x p = {}",
                          value_count(list.size()),
                          ranks * ranks));
}

/// Whole ticks where the decimals allow it: the scale of given times holds those of latencies.
double latency_ticks(double exact) {
  return std::abs(exact - std::round(exact)) < 1e-6 ? std::round(exact) : exact;
}

void set_latency(Cost& cost, const Costs& costs, std::size_t ranks) {
  require_links("latency", costs.latency, ranks);
  cost.link_latency.clear();
  for (const double value : costs.latency) {
    const double exact = value * cost.ticks_per_unit;
    cost.link_latency.push_back(costs.file || costs.stages > 0 ? exact : latency_ticks(exact));
  }
  cost.latency = cost.link_latency.front();
  if (costs.latency.size() == 1) cost.link_latency.clear();
}

void set_bandwidth(Cost& cost, const std::vector<double>& list, std::size_t ranks) {
  require_links("bandwidth", list, ranks);
  cost.bytes_per_tick = list.front() / cost.ticks_per_unit;
  cost.link_bytes_per_tick.clear();
  if (list.size() == 1) return;
  for (const double value : list) cost.link_bytes_per_tick.push_back(value / cost.ticks_per_unit);
}

void set_messages(Cost& cost, const std::vector<double>& list, const Shape& shape) {
  const auto counts = [&](int stages) { return std::cmp_equal(list.size(), stages - 1); };
  require(list.size() == 1 || counts(shape.ranks) || counts(shape.stages()),
          named("message_bytes") +
              fmt::format(" has {}; allowed are 1 or one per boundary, p - 1 = {} or {}",
                          value_count(list.size()),
                          shape.ranks - 1,
                          shape.stages() - 1));
  plan::set_message_bytes(cost, shape, list, counts(shape.stages()) ? shape.stages() : shape.ranks);
}

/// Of links and ranks, what is given.
void set_machine(Cost& cost, const Costs& costs, const Shape& shape) {
  const auto p = static_cast<std::size_t>(shape.ranks);
  if (!costs.latency.empty()) set_latency(cost, costs, p);
  if (!costs.bandwidth.empty()) set_bandwidth(cost, costs.bandwidth, p);
  if (!costs.message_bytes.empty() && costs.stages == 0)
    set_messages(cost, costs.message_bytes, shape);
  cost.contention = costs.contention;
  cost.cores = costs.cores.value_or(0);
  require(costs.rank_speed.empty() || costs.rank_speed.size() == p,
          named("rank_speed") +
              fmt::format(" has {}; allowed are p = {}", value_count(costs.rank_speed.size()), p));
  cost.rank_speed = costs.rank_speed;
}

int decimals_of(const Costs& costs) {
  int most = 0;
  for (const PairMember& pair : kPairs)
    most = std::max(most, decimals_of((costs.*pair.time).value_or(0)));
  for (const auto list :
       {&Costs::forward, &Costs::input, &Costs::weight, &Costs::recompute, &Costs::latency})
    most = std::max(most, decimals_of(costs.*list));
  return most;
}

Cost cost_of_full_stages(const Shape& shape, const Costs& costs) {
  const Portion portion = portion_of(shape, costs.chunk_costs);
  const double scale = std::pow(10, decimals_of(costs));
  const SliceShares slices = slice_shares(costs, shape.slices);
  const auto ticks = [&](const char* name, const std::vector<double>& list) {
    return times(named_list(name, list, 1), portion, scale, slices);
  };
  Cost cost;
  cost.slices = shape.slices;
  cost.ticks_per_unit = scale * portion.parts * slices.sum;
  cost.forward = ticks("forward", costs.forward);
  cost.backward_input = ticks("input", costs.input);
  cost.backward_weight = ticks("weight", costs.weight);
  if (!costs.recompute.empty()) cost.recompute = ticks("recompute", costs.recompute);
  set_memory(cost, costs, portion);
  return cost;
}

Cost cost_of_file(const Shape& shape, const Costs& costs) {
  Cost cost;
  try {
    cost = plan::cost_of_stages(shape, *costs.file);
  } catch (const InvalidArgument& error) {
    throw InvalidParameter(named("costs") + (" " + costs.file_name + ": ") + parameter_text(error));
  }
  if (cost.memory_forward.empty()) set_memory(cost, costs, portion_of(shape, false));
  return cost;
}

Cost stages_of(const Shape& shape, const Costs& costs) {
  if (costs.file) return cost_of_file(shape, costs);
  return costs.stages > 0 ? plan::cost_of_stages(shape, costs) : cost_of_full_stages(shape, costs);
}

}  // namespace

Cost cost_of(const Shape& shape, const Costs& costs) {
  require_consistent(costs);
  Cost cost = stages_of(shape, costs);
  set_machine(cost, costs, shape);
  set_pair_costs(cost, costs, shape);
  if (costs.atomic_pairs) set_atomic_pairs(cost);
  set_gradients(cost, costs, shape);
  set_passes(cost, costs, shape);
  return cost;
}

}  // namespace millrace
