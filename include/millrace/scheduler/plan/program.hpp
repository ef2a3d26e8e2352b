// Program: one ordered list of actions per rank. What generators make, passes rewrite and executors
// read. Contract: each rank executes its list in order; a receive completes only after its matching
// send was issued; a valid schedule terminates on every transport that delivers by key with at
// least the declared capacity per channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/action.hpp"
#include "millrace/scheduler/plan/shape.hpp"

namespace millrace {

/// A schedule: shape and program, nothing else.
/// Thread-safety: immutable once built, share freely.
struct Program {
  Shape shape;
  std::vector<std::vector<Action>> ranks = {};  ///< ranks[r] in execution order
  std::string name = {};  ///< what generated it, for titles; not part of equality

  [[nodiscard]] std::span<const Action> on(Rank rank) const { return ranks[rank.index()]; }

  /// Actions over all ranks.
  [[nodiscard]] std::size_t size() const {
    std::size_t total = 0;
    for (const auto& list : ranks) total += list.size();
    return total;
  }

  friend bool operator==(const Program& a, const Program& b) {
    return a.shape == b.shape && a.ranks == b.ranks;
  }
};

/// The shape that lists of actions imply: counts from the largest numbers, the placement from where
/// each stage stands, the replica of a micro-batch from its actions; a chain. Throws
/// InvalidArgument when there is no list or no action, a stage of a replica stands on two ranks or
/// nowhere, a micro-batch is of two replicas, or its numbers are far beyond what so few actions can
/// be. Cost: O(actions). Thread-safety: pure function.
[[nodiscard]] Shape implied_shape(const std::vector<std::vector<Action>>& ranks);

/// Throws InvalidArgument unless the program has a list per rank of its shape, the shape is sound
/// and every action lies inside it. Cost: O(actions).
void require_inside_shape(const Program& program);

/// Where an action stands: program.ranks[rank][position].
struct ActionPlace {
  Rank rank;
  std::size_t position = 0;

  friend bool operator==(const ActionPlace&, const ActionPlace&) = default;
};

}  // namespace millrace
