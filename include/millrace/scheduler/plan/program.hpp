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

#include "millrace/core/ids.hpp"
#include "millrace/scheduler/plan/shape.hpp"

namespace millrace {

/// F forward, B full backward, I input-gradient half, W weight-gradient half (B = I then W).
/// A send or receive is named after the stage that acts and after the link that it serves, by its
/// number at that stage (stage_graph.hpp; in a chain SendForward of stage s pairs with RecvForward
/// of s+1, SendBackward of s with RecvBackward of s-1, and the number is 0). ReduceGrad sums a
/// stage's gradient over its copies, in replica order, and what is tied over the tie, in the order
/// of the layers. OptimizerStep ends the step.
enum class Op : std::uint8_t {
  Forward,
  Backward,
  BackwardInput,
  BackwardWeight,
  Recompute,
  SendForward,
  RecvForward,
  SendBackward,
  RecvBackward,
  ReduceGrad,
  OptimizerStep,
};

inline constexpr int kOps = 11;

/// One instruction of one rank's program. 16 bytes.
/// Thread-safety: immutable, share freely.
struct Action {
  Op op = Op::Forward;
  bool with_next = false;  ///< first half of an overlapped pair; the next action is the other half
  std::uint8_t replica_number = 0;
  std::uint8_t edge = 0;  ///< of a send or receive: which link of its stage; 0 is the neighbour's
  Stage stage;
  MicroBatch micro_batch;
  Slice slice;

  [[nodiscard]] constexpr Replica replica() const { return Replica{replica_number}; }
  [[nodiscard]] constexpr Unit unit() const { return {micro_batch, slice}; }

  friend constexpr auto operator<=>(const Action&, const Action&) = default;
};

static_assert(sizeof(Action) == 16);

/// Whether the op belongs to one micro-batch (all but ReduceGrad and OptimizerStep).
[[nodiscard]] constexpr bool has_unit(Op op) {
  return op < Op::ReduceGrad;
}

/// F, B, I, W and recompute: what occupies the rank.
[[nodiscard]] constexpr bool is_compute(Op op) {
  return op <= Op::Recompute;
}
[[nodiscard]] constexpr bool is_send(Op op) {
  return op == Op::SendForward || op == Op::SendBackward;
}
[[nodiscard]] constexpr bool is_receive(Op op) {
  return op == Op::RecvForward || op == Op::RecvBackward;
}
/// B or I: what produces the gradient for the previous stage.
[[nodiscard]] constexpr bool gives_input_gradient(Op op) {
  return op == Op::Backward || op == Op::BackwardInput;
}
/// B or W: what adds to the stage's weight gradient.
[[nodiscard]] constexpr bool gives_weight_gradient(Op op) {
  return op == Op::Backward || op == Op::BackwardWeight;
}

/// The op's letters in PyTorch's schedule CSV: "F", "B", "I", "W", "SEND_F", "REDUCE_GRAD", ...
/// Recompute is "R" and OptimizerStep "STEP", which that grammar does not have.
[[nodiscard]] const char* letters(Op op);

/// "3F7": stage 3, forward, micro-batch 7; with a slice "3F7.1", with replica 1 "3'F7", along link
/// 2 of its stage "3SEND_F7@2".
[[nodiscard]] std::string to_string(const Action& action);

/// "F of stage 3, micro-batch 7" for messages; slice and replica are named when not 0.
[[nodiscard]] std::string describe(const Action& action);

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
