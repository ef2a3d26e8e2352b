// The table of costs, and what the members of one set of costs must keep to.
#include "plan/costs/costs.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <numeric>
#include <utility>

#include "millrace/core/error.hpp"
#include "plan/text/number_text.hpp"

namespace millrace {

namespace {

using Numbers = std::vector<double>;
using InFile = CostMember::InFile;

constexpr double kLargestCost = 1e15;  // beyond it ticks would not be whole numbers any more

const std::array kMembers = {
    CostMember{"forward",
               &Costs::forward,
               "Time of F of a full stage: 1 value; p values, of p consecutive full stages; or p v "
               "values, of every stage as if it were a full one (default 1)",
               0,
               InFile::StagesAndSlices},
    CostMember{
        "input", &Costs::input, "Time of I, as `forward` (default 1)", 0, InFile::StagesAndSlices},
    CostMember{"weight",
               &Costs::weight,
               "Time of W, as `forward`; B takes I + W (default 1)",
               0,
               InFile::StagesAndSlices},
    CostMember{"backward", &Costs::backward, "", 0, InFile::StagesAndSlices},
    CostMember{"recompute",
               &Costs::recompute,
               "Time of a recompute, as `forward` (default: that of F)",
               0,
               InFile::StagesAndSlices},
    CostMember{"slice_costs",
               &Costs::slice_costs,
               "Shares of the slices in a stage's times, q numbers: 1,1.2,1.4 (default: equal)"},
    CostMember{"chunk_costs", &Costs::chunk_costs, "Times and memory are of a chunk"},
    CostMember{"memory_forward",
               &Costs::memory_forward,
               "Change of memory at F of a full stage (default 1)",
               -kLargestCost,
               InFile::Stages},
    CostMember{
        "memory_forward_peak", &Costs::memory_forward_peak, "", -kLargestCost, InFile::Stages},
    CostMember{"memory_input_peak", &Costs::memory_input_peak, "", -kLargestCost, InFile::Stages},
    CostMember{"memory_input",
               &Costs::memory_input,
               "Change of memory at the end of I (default 0)",
               -kLargestCost,
               InFile::Stages},
    CostMember{"memory_weight",
               &Costs::memory_weight,
               "Change of memory at the end of W (default: frees all of `memory_forward` and "
               "`memory_input`)",
               -kLargestCost,
               InFile::Stages},
    CostMember{"memory_boundary",
               &Costs::memory_boundary,
               "What F keeps of a stage of any size that recomputes: its input (default 0)",
               0,
               InFile::Stages},
    CostMember{
        "gradient_bytes",
        &Costs::gradient_bytes,
        "Bytes of the gradients of a full stage, as `forward`: of the gradient all-reduce of "
        "`data_parallel` or of a bidirectional schedule, or of the partial sums of "
        "`tree_of_sums` (default 0)",
        0,
        InFile::Stages},
    CostMember{
        "data_parallel",
        &Costs::data_parallel,
        "Data-parallel replicas: the gradients of a stage are added over them after its last "
        "B or W, while later passes run (default 1)",
        1},
    CostMember{"accumulate",
               &Costs::accumulate,
               "Accumulation steps: passes of m micro-batches in one step. A pass begins when all "
               "ranks have ended the one before; the gradient all-reduce follows the last one, "
               "which is drawn (default 1)",
               1},
    CostMember{"tree_of_sums",
               &Costs::tree_of_sums,
               "Add gradients of micro-batches by a tree, whose partial sums count as memory where "
               "`gradient_bytes` or a cost file state their size",
               0,
               InFile::No,
               false},
    CostMember{"optimizer", &Costs::optimizer, "", 0, InFile::Number},
    CostMember{"after_passes", &Costs::after_passes, "", 0, InFile::Number},
    CostMember{"latency",
               &Costs::latency,
               "Time of a message between ranks: 1 value, or p x p, from rank 0 to each rank first "
               "(default 0)",
               0,
               InFile::Number},
    CostMember{
        "bandwidth",
        &Costs::bandwidth,
        "Bytes per unit of time of a link: 1 or p x p values, 0 is unlimited, from a rank to "
        "itself for its data-parallel replicas; needs `message_bytes` or `gradient_bytes`",
        0,
        InFile::Number},
    CostMember{
        "message_bytes",
        &Costs::message_bytes,
        "Bytes of the message of one micro-batch: 1 value, or one per boundary between stages, "
        "of p full stages or of all p v",
        0,
        InFile::Boundaries},
    CostMember{"contention",
               &Costs::contention,
               "Messages of one directed link follow one another; needs `bandwidth`",
               0,
               InFile::No,
               false},
    CostMember{"rank_speed",
               &Costs::rank_speed,
               "Speed of every rank, one value each: an op takes its time / speed (default 1)",
               1e-9},
    CostMember{"cores",
               &Costs::cores,
               "Cores that the ranks share, where they are fewer: at most N passes run at a time, "
               "in the order in which they become ready (default: one per rank)",
               1,
               InFile::No,
               false},
    CostMember{"atomic_pairs",
               &Costs::atomic_pairs,
               "Run overlapped pairs of F with B or I as one op of F + B",
               0,
               InFile::No,
               false},
    CostMember{"pair_cost",
               &Costs::pair_cost,
               "Run overlapped pairs of F with B or I as one op of this time, of a full stage "
               "(default: one half after the other)",
               0,
               InFile::Number},
    CostMember{"pair_input",
               &Costs::pair_input,
               "The same for F with I (default: `pair_cost`)",
               0,
               InFile::Number},
    CostMember{"pair_weight",
               &Costs::pair_weight,
               "The same for F with W (default: one half after the other)",
               0,
               InFile::Number},
    CostMember{"pair_forward",
               &Costs::pair_forward,
               "The same for F with F (default: one half after the other)",
               0,
               InFile::Number},
};

const Numbers* list_of(const Costs& costs, const CostMember& row) {
  const auto* list = std::get_if<Numbers Costs::*>(&row.member);
  return list == nullptr ? nullptr : &(costs.**list);
}

void require_in_range(const Costs& costs, const CostMember& row) {
  const auto check = [&row](double value) {
    require(value >= row.least && value <= kLargestCost,
            named(row.name) + fmt::format(" holds {}; expected numbers from {} to {}",
                                          plan::number_text(value),
                                          plan::number_text(row.least),
                                          plan::number_text(kLargestCost)));
  };
  if (const Numbers* list = list_of(costs, row)) std::ranges::for_each(*list, check);
  if (const auto* number = std::get_if<std::optional<double> Costs::*>(&row.member))
    if (costs.**number) check(*(costs.**number));
}

bool has_memory(const Costs& costs) {
  return !costs.memory_forward.empty();
}

/// Whether the file states what the row does, so that nothing else may.
bool states(const Costs& file, const CostMember& row) {
  if (row.name == "gradient_bytes") return !file.gradient_bytes.empty();
  if (row.in_file == InFile::Stages) return has_memory(file);
  return row.in_file == InFile::StagesAndSlices || row.name == "slice_costs" ||
         row.name == "chunk_costs";
}

bool is_given(const Costs& costs, const CostMember& row) {
  if (row.name == "chunk_costs") return costs.chunk_costs;
  const Numbers* list = list_of(costs, row);
  return list != nullptr && !list->empty();
}

[[noreturn]] void reject_alone(const char* given, const char* missing) {
  throw InvalidParameter(named(given) + " is given without " + named(missing) +
                         "; they go together");
}

void require_bandwidth(const Costs& costs) {
  const bool sized =
      !costs.message_bytes.empty() || !costs.gradient_bytes.empty() ||
      (costs.file && (!costs.file->message_bytes.empty() || !costs.file->gradient_bytes.empty()));
  const bool limited = !costs.bandwidth.empty() || (costs.file && !costs.file->bandwidth.empty());
  if (!costs.bandwidth.empty() && !sized)
    reject_alone("bandwidth", costs.data_parallel > 1 ? "gradient_bytes" : "message_bytes");
  if (costs.bandwidth.empty() && !costs.message_bytes.empty())
    reject_alone("message_bytes", "bandwidth");
  require(!costs.contention || limited,
          named("contention") + " is given without " + named("bandwidth") +
              "; only a link with a bandwidth can be busy");
}

double sum_of(const Numbers& list) {
  return std::accumulate(list.begin(), list.end(), 0.0);
}

double mean_of(const Numbers& list, double otherwise) {
  return list.empty() ? otherwise : sum_of(list) / static_cast<double>(list.size());
}

/// What p full stages keep at F in all.
double memory_of_all(const Costs& costs, int ranks, int stages) {
  if (costs.file && has_memory(*costs.file)) return sum_of(costs.file->memory_forward);
  return mean_of(costs.memory_forward, 1) * (costs.chunk_costs ? stages : ranks);
}

double limit_in(std::string_view text) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(
      fault == std::errc{} && end == text.data() + text.size() && value <= kLargestCost,
      named("memory_limit") +
          fmt::format(" {}: must be a number, or a number with suffix p (times p x mem-f)", text));
  require(value >= 0, named("memory_limit") + fmt::format(" {}: must be a number from 0", text));
  return value;
}

}  // namespace

std::span<const CostMember> cost_members() {
  return kMembers;
}

Costs over(Costs file, std::string file_name, Costs said) {
  said.file = std::make_shared<const Costs>(std::move(file));
  said.file_name = std::move(file_name);
  require_consistent(said);
  return said;
}

void require_consistent(const Costs& costs) {
  for (const CostMember& row : kMembers) {
    if (!costs.stages) require_in_range(costs, row);
    if (costs.file && is_given(costs, row) && states(*costs.file, row))
      throw InvalidParameter(named(row.name) + " was given, but " + named("costs") + " " +
                             costs.file_name + " has it too; leave one of them out");
  }
  if (!costs.stages) require_bandwidth(costs);
  for (const auto time : {&Costs::pair_cost, &Costs::pair_input})
    require(!costs.atomic_pairs || !(costs.*time || (costs.file && (*costs.file).*time)),
            named("atomic_pairs") + " and " +
                named(time == &Costs::pair_cost ? "pair_cost" : "pair_input") +
                " both say how long a pair takes; leave one of them out");
}

void require_memory(const Costs& costs) {
  if (!costs.file || has_memory(*costs.file)) return;
  require(has_memory(costs) || !costs.memory_input.empty() || !costs.memory_weight.empty() ||
              !costs.memory_boundary.empty(),
          named("memory_limit") + " was given, but " + named("costs") + " " + costs.file_name +
              " says nothing about memory; give " + named("memory_forward") + ", " +
              named("memory_input") + " and " + named("memory_weight") +
              " with it, or memory_forward, memory_input and memory_weight in the file");
}

bool states_times_or_memory(const Costs& costs) {
  return std::ranges::any_of(kMembers, [&](const CostMember& row) {
    const bool in_lists = row.in_file == InFile::Stages || row.in_file == InFile::StagesAndSlices;
    return (in_lists || row.name == "slice_costs") && row.name != "gradient_bytes" &&
           is_given(costs, row);
  });
}

Costs costs_that_apply(const Costs& costs, const Shape& shape) {
  Costs applying = costs;
  const bool used = costs.data_parallel > 1 || costs.tree_of_sums || shape.replicas() > 1;
  if (costs.gradient_bytes.empty() || used) return applying;
  applying.gradient_bytes.clear();
  if (costs.message_bytes.empty()) applying.bandwidth.clear();
  return applying;
}

MemoryLimit parse_memory_limit(std::string_view text) {
  MemoryLimit limit;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    std::string_view one = text.substr(from, comma - from);
    require(one != "p", named("memory_limit") + " p: must be a number before the p, such as 1p");
    limit.of_all.push_back(one.ends_with('p'));
    if (limit.of_all.back()) one.remove_suffix(1);
    limit.of_rank.push_back(limit_in(one));
    from = comma + 1;
  }
  return limit;
}

std::vector<double> memory_limits(const MemoryLimit& limit,
                                  const Costs& costs,
                                  int ranks,
                                  int stages) {
  std::vector<double> limits = limit.of_rank;
  if (!limits.empty()) require_memory(costs);
  require(
      limits.size() <= 1 || limits.size() == static_cast<std::size_t>(ranks),
      named("memory_limit") +
          fmt::format(" has {} values; allowed are 1 or one per rank, {}", limits.size(), ranks));
  for (std::size_t i = 0; i < limits.size(); ++i)
    if (i < limit.of_all.size() && limit.of_all[i])
      limits[i] *= memory_of_all(costs, ranks, stages);
  return limits;
}

MeanStage mean_stage(const Costs& costs, int chunks) {
  MeanStage mean{.forward = mean_of(costs.forward, 1) * chunks,
                 .input = mean_of(costs.input, 1) * chunks,
                 .weight = mean_of(costs.weight, 1) * chunks,
                 .latency = mean_of(costs.latency, 0),
                 .bandwidth = mean_of(costs.bandwidth, 0),
                 .gradient_bytes = mean_of(costs.gradient_bytes, 0),
                 .memory_forward = mean_of(costs.memory_forward, 1) * chunks,
                 .memory_input = mean_of(costs.memory_input, 0) * chunks,
                 .memory_weight = 0};
  mean.memory_weight = costs.memory_weight.empty() ? -mean.memory_forward - mean.memory_input
                                                   : mean_of(costs.memory_weight, 0) * chunks;
  if (!costs.file && costs.stages == 0) return mean;
  const Costs& file = costs.file ? *costs.file : costs;
  const auto of_rank = [&](const Numbers& list) { return sum_of(list) / file.ranks; };
  mean.forward = of_rank(file.forward);
  mean.input = of_rank(file.input);
  mean.weight = of_rank(file.weight);
  if (costs.latency.empty()) mean.latency = mean_of(file.latency, 0);
  if (costs.bandwidth.empty()) mean.bandwidth = mean_of(file.bandwidth, 0);
  if (costs.gradient_bytes.empty()) mean.gradient_bytes = of_rank(file.gradient_bytes);
  if (!has_memory(file)) return mean;
  mean.memory_forward = of_rank(file.memory_forward);
  mean.memory_forward_peak = of_rank(file.memory_forward_peak);
  mean.memory_input = of_rank(file.memory_input);
  mean.memory_weight = of_rank(file.memory_weight);
  if (!file.memory_input_peak.empty()) mean.memory_input_peak = of_rank(file.memory_input_peak);
  return mean;
}

}  // namespace millrace
