// Grid maps (data-parallel rank, pipeline rank) to a process; nothing else does.
#pragma once

#include <string>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/transport/endpoint.hpp"

namespace millrace {

/// `data` data-parallel replicas of a pipeline of `pipeline` ranks, a process for each. Processes
/// are numbered copy by copy, so that neighbours in a pipeline are neighbours among the processes:
///
///     process = copy * pipeline + place
///
/// Thread-safety: a value. Cost: O(1), of the lists O(their length).
class Grid {
 public:
  /// Throws InvalidArgument when a number is below 1, or their product too large for a rank.
  Grid(int data, int pipeline);

  [[nodiscard]] int data() const { return data_; }
  [[nodiscard]] int pipeline() const { return pipeline_; }
  [[nodiscard]] int processes() const { return data_ * pipeline_; }

  [[nodiscard]] Rank process(int copy, Rank place) const {
    return Rank{copy * pipeline_ + place.value};
  }
  [[nodiscard]] int copy_of(Rank process) const { return process.value / pipeline_; }
  [[nodiscard]] Rank place_of(Rank process) const { return Rank{process.value % pipeline_}; }

  /// The processes of one pipeline, by place; and those that have the same place, by copy: what a
  /// ProcessGroup of a copy's ranks, or of a stage's copies, is made of.
  [[nodiscard]] std::vector<Rank> processes_of_copy(int copy) const;
  [[nodiscard]] std::vector<Rank> processes_at(Rank place) const;

  friend bool operator==(const Grid&, const Grid&) = default;

 private:
  int data_;
  int pipeline_;
};

/// Where a process sits: which places of a program are its own, and through which endpoint and to
/// whom it sends what the others' need. Without an endpoint all places are here.
/// Thread-safety: a value; what the endpoint does is the endpoint's.
class GridPosition {
 public:
  GridPosition() = default;
  /// `endpoint` must stay as long as the position is used. Throws InvalidArgument when its world
  /// has another number of processes than the grid.
  GridPosition(Endpoint& endpoint, const Grid& grid);
  /// One copy: every process of the endpoint's world is a place.
  explicit GridPosition(Endpoint& endpoint) : GridPosition(endpoint, Grid(1, endpoint.world())) {}

  [[nodiscard]] Endpoint* endpoint() const { return endpoint_; }
  [[nodiscard]] const Grid& grid() const { return grid_; }
  /// Which copy of the pipeline this process is of; 0 without an endpoint.
  [[nodiscard]] int copy() const { return copy_; }
  /// This process's place; 0 without an endpoint.
  [[nodiscard]] Rank place() const { return place_; }
  /// Whether the place is this process's.
  [[nodiscard]] bool hosts(Rank place) const { return endpoint_ == nullptr || place == place_; }
  /// The process that has `place` in this process's copy.
  [[nodiscard]] Rank process(Rank place) const { return grid_.process(copy_, place); }
  /// "rank 1", where there are several copies "rank 1 of copy 0".
  [[nodiscard]] std::string name_of(Rank place) const;

 private:
  Endpoint* endpoint_ = nullptr;
  Grid grid_{1, 1};
  int copy_ = 0;
  Rank place_{0};
};

}  // namespace millrace
