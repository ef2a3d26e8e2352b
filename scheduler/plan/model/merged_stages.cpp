// Costs of stages that are put together; see cost_file.hpp.
#include <algorithm>
#include <array>
#include <functional>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/cost_file.hpp"
#include "plan/model/memory.hpp"

namespace millrace {

namespace {

using Values = std::vector<double>;

/// Sums of the entries of stages [first, last) for each of `slices`.
void add_sums(
    const Values& from, std::size_t first, std::size_t last, std::size_t slices, Values& into) {
  if (from.empty()) return;
  for (std::size_t slice = 0; slice < slices; ++slice) {
    double sum = 0;
    for (std::size_t stage = first; stage < last; ++stage) sum += from[stage * slices + slice];
    into.push_back(sum);
  }
}

void require_boundaries(const std::vector<int>& boundaries, int stages, int ranks) {
  require(
      boundaries.size() >= 2 && boundaries.front() == 0 && boundaries.back() == stages &&
          std::is_sorted(boundaries.begin(), boundaries.end(), std::less_equal<>()),
      "boundaries run strictly upwards from 0 to the number of stages, " + std::to_string(stages));
  require(ranks >= 1 && (boundaries.size() - 1) % static_cast<std::size_t>(ranks) == 0,
          std::to_string(ranks) + " ranks cannot hold " + std::to_string(boundaries.size() - 1) +
              " stages evenly");
}

}  // namespace

std::vector<double> stage_times(const Cost& cost) {
  const auto slices = static_cast<std::size_t>(cost.slices);
  std::vector<double> times(cost.forward.size() / slices, 0);
  for (std::size_t i = 0; i < cost.forward.size(); ++i)
    times[i / slices] +=
        cost.forward[i] + (cost.backward.empty() ? cost.backward_input[i] + cost.backward_weight[i]
                                                 : cost.backward[i]);
  return times;
}

CostFile merged_stages(const CostFile& file, const std::vector<int>& boundaries, int ranks) {
  require_boundaries(boundaries, file.stages, ranks);
  CostFile result{.ranks = ranks,
                  .stages = static_cast<int>(boundaries.size()) - 1,
                  .unit = file.unit,
                  .assumed = file.assumed,
                  .cost = file.cost};
  const auto slices = static_cast<std::size_t>(file.cost.slices);
  const std::array times = {&Cost::forward,
                            &Cost::backward_input,
                            &Cost::backward_weight,
                            &Cost::backward,
                            &Cost::recompute};
  const std::array memory = {
      &Cost::memory_forward, &Cost::memory_input, &Cost::memory_weight, &Cost::gradient_bytes};
  for (const auto member : times) (result.cost.*member).clear();
  for (const auto member : memory) (result.cost.*member).clear();
  const bool has_input_peaks = !file.cost.memory_input_peak.empty() ||
                               (!file.cost.memory_input.empty() && result.stages < file.stages);
  result.cost.memory_input_peak.clear();
  result.cost.memory_boundary.clear();
  for (std::size_t s = 0; s + 1 < boundaries.size(); ++s) {
    const auto first = static_cast<std::size_t>(boundaries[s]);
    const auto last = static_cast<std::size_t>(boundaries[s + 1]);
    for (const auto member : times)
      add_sums(file.cost.*member, first, last, slices, result.cost.*member);
    for (const auto member : memory)
      add_sums(file.cost.*member, first, last, 1, result.cost.*member);
    if (has_input_peaks)
      result.cost.memory_input_peak.push_back(plan::merged_input_peak(file.cost, first, last));
    if (!file.cost.memory_boundary.empty())
      result.cost.memory_boundary.push_back(file.cost.memory_boundary[first]);
  }
  return result;
}

}  // namespace millrace
