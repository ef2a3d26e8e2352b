// A cost file for another shape of the same model: stages that are several of the file's, or parts
// of one.
#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/cost_file.hpp"
#include "plan/model/memory.hpp"

namespace millrace {

namespace {

std::string counted(int ranks, int stages, int slices) {
  return "p = " + std::to_string(ranks) + ", " + std::to_string(stages) + " stages and " +
         std::to_string(slices) + (slices == 1 ? " slice" : " slices");
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

Fit fit_of(const CostFile& file, const Shape& shape) {
  const int have = file.stages, want = shape.stages();
  const bool same_slices = file.cost.slices == shape.slices;
  const bool same = have == want && same_slices;
  const bool divides = want > 0 && (have % want == 0 || want % have == 0);
  require(same || (file.ranks == shape.ranks && divides && (same_slices || file.cost.slices == 1)),
          "the costs are of " + counted(file.ranks, have, file.cost.slices) +
              "; the schedule has " + counted(shape.ranks, want, shape.slices));
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

/// The most that I adds at any moment, whose parts run from the last stage to the first.
std::vector<double> input_peaks(const Cost& given, const Fit& fit) {
  std::vector<double> result;
  if (given.memory_input_peak.empty() && (given.memory_input.empty() || fit.of_file == 1))
    return result;
  for (std::size_t stage = 0; stage < fit.stages; ++stage) {
    const std::size_t first = fit.first(stage);
    result.push_back(plan::merged_input_peak(given, first, first + fit.of_file) /
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

}  // namespace

Cost costs_for(const CostFile& file, const Shape& shape) {
  const Fit fit = fit_of(file, shape);
  const Cost& given = file.cost;
  const double finer = static_cast<double>(fit.shared_by * (fit.cuts_slices ? fit.slices : 1));
  Cost cost = given;
  cost.slices = shape.slices;
  cost.ticks_per_unit *= finer;
  cost.latency *= finer;
  cost.optimizer *= finer;
  cost.after_passes *= finer;
  cost.bytes_per_tick /= finer;
  for (const auto list : {&Cost::forward,
                          &Cost::backward_input,
                          &Cost::backward_weight,
                          &Cost::backward,
                          &Cost::recompute})
    cost.*list = times(given.*list, fit);
  for (const auto list :
       {&Cost::memory_forward, &Cost::memory_input, &Cost::memory_weight, &Cost::gradient_bytes})
    cost.*list = memory(given.*list, fit);
  cost.memory_input_peak = input_peaks(given, fit);
  cost.memory_boundary = boundaries(given.memory_boundary, fit);
  return cost;
}

}  // namespace millrace
