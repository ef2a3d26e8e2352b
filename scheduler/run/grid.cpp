// Grids and grid positions: the arithmetic of (copy, place) to process, and its checks.
#include "millrace/scheduler/run/grid.hpp"

#include <limits>

#include "millrace/core/error.hpp"

namespace millrace {

Grid::Grid(int data, int pipeline) : data_(data), pipeline_(pipeline) {
  require(data >= 1 && pipeline >= 1, [&] {
    return "a grid needs at least one copy of a pipeline with at least one place, got " +
           std::to_string(data) + " of " + std::to_string(pipeline);
  });
  require(data <= std::numeric_limits<int>::max() / pipeline, [&] {
    return "a grid of " + std::to_string(data) + " x " + std::to_string(pipeline) +
           " has more processes than a rank can number";
  });
}

std::vector<Rank> Grid::processes_of_copy(int copy) const {
  std::vector<Rank> list;
  for (int place = 0; place < pipeline_; ++place) list.push_back(process(copy, Rank{place}));
  return list;
}

std::vector<Rank> Grid::processes_at(Rank place) const {
  std::vector<Rank> list;
  for (int copy = 0; copy < data_; ++copy) list.push_back(process(copy, place));
  return list;
}

GridPosition::GridPosition(Endpoint& endpoint, const Grid& grid)
    : endpoint_(&endpoint),
      grid_(grid),
      copy_(grid.copy_of(endpoint.rank())),
      place_(grid.place_of(endpoint.rank())) {
  require(endpoint.world() == grid.processes(), [&] {
    return "there are " + std::to_string(endpoint.world()) + " processes; the grid has " +
           std::to_string(grid.data()) + " x " + std::to_string(grid.pipeline()) + " = " +
           std::to_string(grid.processes());
  });
}

std::string GridPosition::name_of(Rank place) const {
  const std::string rank = "rank " + std::to_string(place.value);
  return grid_.data() == 1 ? rank : rank + " of copy " + std::to_string(copy_);
}

}  // namespace millrace
