// Costs of given stages for another shape of the same model: stages that are several of the given
// ones, or parts of one; and given stages put together.
#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <functional>

#include "millrace/core/error.hpp"
#include "plan/costs/costs.hpp"

namespace millrace {

namespace {

std::string counted(int ranks, int stages, int slices) {
  return fmt::format(
      "p = {}, {} stages and {} slice{}", ranks, stages, slices, slices == 1 ? "" : "s");
}

/// How many stages of the file one of the shape is, or how many of the shape share one of the file;
/// one of the two numbers is 1.
struct Fit {
  std::size_t stages = 1;  // of the shape
  std::size_t slices = 1;  // of the shape
  std::size_t of_file = 1;
  std::size_t shared_by = 1;
  bool cuts_slices = false;  // the file has one slice, the shape several

  /// First stage of the file that is in a stage of the shape.
  [[nodiscard]] std::size_t first(std::size_t stage) const { return stage / shared_by * of_file; }
};

Fit fit_of(const Costs& file, const Shape& shape) {
  const int have = file.stages, want = shape.stages();
  const bool same_slices = file.slices == shape.slices;
  const bool same = have == want && same_slices;
  const bool divides = want > 0 && (have % want == 0 || want % have == 0);
  require(same || (file.ranks == shape.ranks && divides && (same_slices || file.slices == 1)),
          "the costs are of " + counted(file.ranks, have, file.slices) + "; the schedule has " +
              counted(shape.ranks, want, shape.slices));
  return {static_cast<std::size_t>(want),
          static_cast<std::size_t>(shape.slices),
          static_cast<std::size_t>(std::max(1, have / want)),
          static_cast<std::size_t>(std::max(1, want / have)),
          !same_slices};
}

/// Ticks of every stage and slice. A tick is shared_by (and, where slices are cut, q) times finer.
std::vector<double> times(const std::vector<double>& given, const Fit& fit) {
  std::vector<double> result;
  if (given.empty()) return result;
  for (std::size_t stage = 0; stage < fit.stages; ++stage)
    for (std::size_t slice = 0; slice < fit.slices; ++slice) {
      double sum = 0;
      for (std::size_t i = fit.first(stage); i < fit.first(stage) + fit.of_file; ++i)
        sum += fit.cuts_slices ? given[i] : given[i * fit.slices + slice];
      result.push_back(sum);
    }
  return result;
}

std::vector<double> memory(const std::vector<double>& given, const Fit& fit) {
  std::vector<double> result;
  if (given.empty()) return result;
  for (std::size_t stage = 0; stage < fit.stages; ++stage) {
    double sum = 0;
    for (std::size_t i = fit.first(stage); i < fit.first(stage) + fit.of_file; ++i) sum += given[i];
    result.push_back(sum / static_cast<double>(fit.shared_by));
  }
  return result;
}

/// The most that the F of stages [first, last) add to their rank's memory at any moment, when they
/// run one after the other.
double merged_forward_peak(const Costs& given, std::size_t first, std::size_t last) {
  double level = 0, peak = 0;
  for (std::size_t stage = first; stage < last; ++stage) {
    peak = std::max(peak, level + given.memory_forward_peak[stage]);
    if (!given.memory_forward.empty()) level += given.memory_forward[stage];
  }
  return std::max(peak, level);
}

/// The most that the I of stages [first, last) add to their rank's memory at any moment, when they
/// run one after the other, the last stage first.
double merged_input_peak(const Costs& given, std::size_t first, std::size_t last) {
  double level = 0, peak = 0;
  for (std::size_t stage = last; stage-- > first;) {
    if (!given.memory_input_peak.empty())
      peak = std::max(peak, level + given.memory_input_peak[stage]);
    if (!given.memory_input.empty()) level += given.memory_input[stage];
    peak = std::max(peak, level);
  }
  return peak;
}

std::vector<double> forward_peaks(const Costs& given, const Fit& fit) {
  std::vector<double> result;
  for (std::size_t stage = 0; stage < fit.stages && !given.memory_forward_peak.empty(); ++stage)
    result.push_back(merged_forward_peak(given, fit.first(stage), fit.first(stage) + fit.of_file) /
                     static_cast<double>(fit.shared_by));
  return result;
}

std::vector<double> input_peaks(const Costs& given, const Fit& fit) {
  std::vector<double> result;
  if (given.memory_input_peak.empty() && (given.memory_input.empty() || fit.of_file == 1))
    return result;
  for (std::size_t stage = 0; stage < fit.stages; ++stage) {
    const std::size_t first = fit.first(stage);
    result.push_back(merged_input_peak(given, first, first + fit.of_file) /
                     static_cast<double>(fit.shared_by));
  }
  return result;
}

/// A stage keeps the input of its first part, which does not get smaller by cutting.
std::vector<double> boundaries(const std::vector<double>& given, const Fit& fit) {
  std::vector<double> result;
  for (std::size_t stage = 0; stage < fit.stages && !given.empty(); ++stage)
    result.push_back(given[fit.first(stage)]);
  return result;
}

/// Sums of the entries of stages [first, last) for each of `slices`.
void add_sums(const std::vector<double>& from,
              std::size_t first,
              std::size_t last,
              std::size_t slices,
              std::vector<double>& into) {
  for (std::size_t slice = 0; slice < slices && !from.empty(); ++slice) {
    double sum = 0;
    for (std::size_t stage = first; stage < last; ++stage) sum += from[stage * slices + slice];
    into.push_back(sum);
  }
}

void require_boundaries(const std::vector<int>& boundaries, int stages, int ranks) {
  require(
      boundaries.size() >= 2 && boundaries.front() == 0 && boundaries.back() == stages &&
          std::is_sorted(boundaries.begin(), boundaries.end(), std::less_equal<>()),
      fmt::format("boundaries run strictly upwards from 0 to the number of stages, {}", stages));
  require(ranks >= 1 && (boundaries.size() - 1) % static_cast<std::size_t>(ranks) == 0,
          fmt::format("{} ranks cannot hold {} stages evenly", ranks, boundaries.size() - 1));
}

/// Lists that add up over stages, with what cost_of makes of them: times, then memory.
struct StageList {
  std::vector<double> Costs::*given;
  std::vector<double> Cost::*ticks;
};

constexpr std::array kTimes = {StageList{&Costs::forward, &Cost::forward},
                               StageList{&Costs::input, &Cost::backward_input},
                               StageList{&Costs::weight, &Cost::backward_weight},
                               StageList{&Costs::backward, &Cost::backward},
                               StageList{&Costs::recompute, &Cost::recompute}};
constexpr std::array kMemory = {StageList{&Costs::memory_forward, &Cost::memory_forward},
                                StageList{&Costs::memory_input, &Cost::memory_input},
                                StageList{&Costs::memory_weight, &Cost::memory_weight},
                                StageList{&Costs::gradient_bytes, &Cost::gradient_bytes}};

}  // namespace

void plan::set_message_bytes(Cost& cost,
                             const Shape& shape,
                             const std::vector<double>& list,
                             int stages) {
  cost.boundary_bytes.clear();
  cost.message_bytes = list.empty() ? 0 : list.front();
  if (list.size() <= 1) return;
  const int want = shape.stages();
  for (int s = 0; s + 1 < want; ++s) {
    const int before = want <= stages ? (s + 1) * (stages / want) - 1 : s / (want / stages);
    cost.boundary_bytes.push_back(list[static_cast<std::size_t>(std::min(before, stages - 2))]);
  }
}

Cost plan::cost_of_stages(const Shape& shape, const Costs& costs) {
  const Fit fit = fit_of(costs, shape);
  const double finer = static_cast<double>(fit.shared_by * (fit.cuts_slices ? fit.slices : 1));
  Cost cost;
  cost.slices = shape.slices;
  cost.ticks_per_unit = finer;
  cost.latency = costs.latency.empty() ? 0 : costs.latency.front() * finer;
  cost.bytes_per_tick = costs.bandwidth.empty() ? 0 : costs.bandwidth.front() / finer;
  set_message_bytes(cost, shape, costs.message_bytes, costs.stages);
  cost.optimizer = costs.optimizer.value_or(0) * finer;
  cost.after_passes = costs.after_passes.value_or(0) * finer;
  for (const auto& [given, ticks] : kTimes) cost.*ticks = times(costs.*given, fit);
  for (const auto& [given, ticks] : kMemory) cost.*ticks = memory(costs.*given, fit);
  cost.memory_forward_peak = forward_peaks(costs, fit);
  cost.memory_input_peak = input_peaks(costs, fit);
  cost.memory_boundary = boundaries(costs.memory_boundary, fit);
  return cost;
}

Costs costs_of_stages(const Shape& shape, const Cost& cost) {
  Costs costs{.ranks = shape.ranks, .stages = shape.stages(), .slices = cost.slices};
  for (const auto& [given, ticks] : kTimes) costs.*given = cost.*ticks;
  for (const auto& [given, held] : kMemory) costs.*given = cost.*held;
  costs.memory_forward_peak = cost.memory_forward_peak;
  costs.memory_input_peak = cost.memory_input_peak;
  costs.memory_boundary = cost.memory_boundary;
  costs.latency = cost.link_latency.empty() ? std::vector{cost.latency} : cost.link_latency;
  costs.bandwidth = cost.link_bytes_per_tick.empty() ? std::vector{cost.bytes_per_tick}
                                                     : cost.link_bytes_per_tick;
  costs.message_bytes =
      cost.boundary_bytes.empty() ? std::vector{cost.message_bytes} : cost.boundary_bytes;
  costs.optimizer = cost.optimizer;
  costs.after_passes = cost.after_passes;
  costs.rank_speed = cost.rank_speed;
  return costs;
}

std::vector<double> stage_times(const Costs& costs) {
  const auto slices = static_cast<std::size_t>(costs.slices);
  std::vector<double> times(costs.forward.size() / slices, 0);
  for (std::size_t i = 0; i < costs.forward.size(); ++i)
    times[i / slices] +=
        costs.forward[i] +
        (costs.backward.empty() ? costs.input[i] + costs.weight[i] : costs.backward[i]);
  return times;
}

Costs merged_stages(const Costs& costs, const std::vector<int>& boundaries, int ranks) {
  require_boundaries(boundaries, costs.stages, ranks);
  Costs result = costs;
  result.ranks = ranks;
  result.stages = static_cast<int>(boundaries.size()) - 1;
  for (const auto& [list, ticks] : kTimes) (result.*list).clear();
  for (const auto& [list, held] : kMemory) (result.*list).clear();
  const bool has_input_peaks = !costs.memory_input_peak.empty() ||
                               (!costs.memory_input.empty() && result.stages < costs.stages);
  result.memory_forward_peak.clear();
  result.memory_input_peak.clear();
  result.memory_boundary.clear();
  if (costs.message_bytes.size() > 1) result.message_bytes.clear();
  for (std::size_t s = 0; s + 1 < boundaries.size(); ++s) {
    if (costs.message_bytes.size() > 1 && s > 0)
      result.message_bytes.push_back(
          costs.message_bytes[static_cast<std::size_t>(boundaries[s]) - 1]);
    const auto first = static_cast<std::size_t>(boundaries[s]);
    const auto last = static_cast<std::size_t>(boundaries[s + 1]);
    for (const auto& [list, ticks] : kTimes)
      add_sums(costs.*list, first, last, static_cast<std::size_t>(costs.slices), result.*list);
    for (const auto& [list, held] : kMemory) add_sums(costs.*list, first, last, 1, result.*list);
    if (!costs.memory_forward_peak.empty())
      result.memory_forward_peak.push_back(merged_forward_peak(costs, first, last));
    if (has_input_peaks) result.memory_input_peak.push_back(merged_input_peak(costs, first, last));
    if (!costs.memory_boundary.empty())
      result.memory_boundary.push_back(costs.memory_boundary[first]);
  }
  return result;
}

}  // namespace millrace
