// A search's options from the costs of a model.
#include <algorithm>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/search.hpp"
#include "plan/search/portfolio.hpp"

namespace millrace {

namespace {

/// Whether the costs are those of one placement's stages only: then a model in two copies, whose
/// stages are full ones, cannot be costed.
bool of_one_cut(const Costs& costs, int ranks) {
  const auto per_stage = [p = static_cast<std::size_t>(ranks)](const std::vector<double>& list) {
    return list.size() > 1 && list.size() != p;
  };
  const std::size_t boundaries = costs.message_bytes.size();
  return costs.chunk_costs || (costs.file && costs.file->stages != ranks) ||
         per_stage(costs.forward) || per_stage(costs.input) || per_stage(costs.weight) ||
         per_stage(costs.memory_forward) || per_stage(costs.memory_input) ||
         per_stage(costs.memory_boundary) || per_stage(costs.recompute) ||
         per_stage(costs.memory_weight) ||
         (boundaries > 1 && std::cmp_not_equal(boundaries, ranks - 1));
}

}  // namespace

void set_costs(SearchOptions& options, const Costs& costs) {
  plan::require_counts(options);
  require(costs.slice_costs.empty() || options.slices.value_or(1) > 1,
          named("slice_costs") + " needs " + named("slices") +
              ": the search cuts no slices of its own");
  require(!costs.chunk_costs || options.chunks,
          named("chunk_costs") + " needs " + named("chunks") +
              ": the search compares numbers of chunks of one model");
  // Full stages can be cut; those of another number of chunks stay what they are.
  if (!options.chunks && costs.file && costs.file->stages != options.ranks)
    options.chunks = std::max(1, costs.file->stages / options.ranks);
  options.bidirectional = options.bidirectional && !of_one_cut(costs, options.ranks);
  options.cost = [costs, several = options.bidirectional](const Shape& shape) {
    return cost_of(shape, several ? costs_that_apply(costs, shape) : costs);
  };
}

}  // namespace millrace
