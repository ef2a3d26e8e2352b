// verify: is the program a correct schedule, and can it hang. Returns every violation; never throws
// for a bad program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

class Graph;

/// The rules, numbered as in scheduler/README.md.
enum class Rule : std::uint8_t {
  Placement =
      1,  ///< every stage of every replica on exactly one rank; ranks run only their own stages
  Completeness = 2,      ///< each op exactly once: F, and B or (I and W), for every stage and unit
  WeightAfterInput = 3,  ///< W after its I on the same rank; never B and (I, W) for one unit
  Pairs = 4,  ///< a pair is two of F, B, I, W of different units, without dependency, not nested
  Order = 5,  ///< program order and data dependencies have no cycle
  Messages =
      6,  ///< every rank-crossing edge has one SEND and one RECV, after producer, before consumer
  Deadlock = 7,       ///< no cycle under the named transport
  Capacity = 8,       ///< a channel's declared capacity is enough
  Memory = 9,         ///< peak memory within the limit; nothing live at the end
  Accumulation = 10,  ///< reported, never a violation: see `accumulation`
  LossWeight = 11,    ///< every micro-batch has a loss weight and the weights sum to 1
};

struct Violation {
  Rule rule = Rule::Placement;
  Rank rank;
  std::size_t position = 0;  ///< index in the rank's list; its length where something is missing
  std::string message;
  /// The other actions of the fault: the rest of a cycle, or what should have come first.
  std::vector<ActionPlace> others = {};
};

/// What the messages travel on. Unless `ordered`, every message has a key and may overtake others.
struct Transport {
  enum class Kind : std::uint8_t { Rendezvous, Bounded, Unbounded };
  Kind kind = Kind::Unbounded;
  int capacity = 1;  ///< messages per channel, for Bounded; 0 and less is a rendezvous
  /// For Bounded: channels with a declared depth of their own, checked as rule 8.
  std::vector<ChannelDepth> channels = {};
  /// Without keys, the k-th message of a rank to another, of either direction, must be the k-th
  /// that the other receives from it: checked as rule 6.
  bool ordered = false;

  static Transport rendezvous() { return {Kind::Rendezvous, 0, {}, false}; }
  static Transport bounded(int capacity) { return {Kind::Bounded, capacity, {}, false}; }
  static Transport unbounded() { return {Kind::Unbounded, 0, {}, false}; }
  /// Messages arrive in the order sent and have no key: gloo and NCCL as PyTorch uses them.
  static Transport fifo() { return {Kind::Unbounded, 0, {}, true}; }
};

/// What is checked besides the program itself. Unset members are not checked.
struct VerifyOptions {
  Transport transport = {};
  /// Rule 9: largest memory at any moment, per rank (or one value for all), under `cost`.
  std::vector<double> memory_limit = {};
  std::optional<Cost> cost = {};
  /// Rule 11: one weight per micro-batch.
  std::vector<double> loss_weights = {};
};

/// Checks rules 1 to 8 (6 to 8 only for a program that has sends and receives). Empty means valid.
/// Rules 5, 7, 8 and 9 are looked at only when 1 to 4 and 6 hold, 7 and 8 only when 5 holds; a
/// cycle is reported as its shortest form.
///
/// Rule 7 is a proof: edges for the transport are added to the graph (rendezvous: a send waits for
/// what precedes its receive; capacity K: SEND j + K waits for RECV j of its channel), and a
/// straight-line program hangs exactly when they close a cycle.
/// Cost: O(actions). Thread-safety: pure function.
[[nodiscard]] std::vector<Violation> verify(const Program& program,
                                            const Transport& transport = Transport::unbounded());

/// As above with rules 9 and 11. Throws InvalidArgument when `cost` does not fit the shape.
[[nodiscard]] std::vector<Violation> verify(const Program& program, const VerifyOptions& options);

/// As above for the program of a graph that exists anyhow, at about half the cost.
[[nodiscard]] std::vector<Violation> verify(const Graph& graph, const VerifyOptions& options = {});

/// How much room a channel (source, destination, direction) needs.
struct ChannelCapacity {
  Rank source;
  Rank destination;
  Direction direction = Direction::Forward;
  /// With every channel at its minimal depth the program terminates; with any one of them above 1
  /// a step lower it does not. Never above `sufficient`; a larger depth elsewhere may allow less
  /// here, so the set is one of several.
  int minimal = 1;
  /// Most messages sent and not yet received when nothing ever waits for room (F = I = W = 1).
  int sufficient = 1;

  friend bool operator==(const ChannelCapacity&, const ChannelCapacity&) = default;
};

/// The channels of a program, by source, destination and direction. A program without messages is
/// looked at with each receive right before its use. Empty when the program deadlocks anyhow.
/// Throws InvalidArgument when an action lies outside the shape or a message has no partner.
/// Cost: O(actions (1 + c log K)), with c the channels that need more than one place, K the most.
[[nodiscard]] std::vector<ChannelCapacity> channel_capacities(const Program& program);

/// As above for the program of a graph that exists anyhow.
[[nodiscard]] std::vector<ChannelCapacity> channel_capacities(const Graph& graph);

/// The smallest depth that is enough when all channels have the same, at least 1; nothing when the
/// program deadlocks anyhow. Looks at the same program as channel_capacities, at the same cost.
[[nodiscard]] std::optional<int> uniform_capacity(const Program& program);

/// Whether each stage adds its weight gradients in ascending unit order (slices descending inside a
/// micro-batch), so that training gives the same bits as sequential accumulation.
struct Accumulation {
  bool ascending = true;
  std::optional<Stage> broken;  ///< first stage whose order is another one
  std::string message;
};

/// Looks at the lists as they stand, also of a program that verify objects to. Throws
/// InvalidArgument when an action lies outside the shape. Cost: O(actions).
[[nodiscard]] Accumulation accumulation(const Program& program);

/// What a program's tree of sums holds beside the gradients of its stages themselves.
/// Thread-safety: a value.
struct PartialSumCount {
  std::vector<int> of_stage;            ///< the most sums of a stage at a time
  std::vector<std::size_t> rank_bytes;  ///< by rank: the most bytes of all its stages' at a time
};

/// Counts the sums of a step that adds gradients by SumTree: those that wait for their partner in
/// it; those of micro-batches whose passes (slices) are interrupted by another's; and the one that
/// a micro-batch has just made. Each has the `gradient_bytes` of its stage. Where a stage's
/// micro-batches come in ascending order they are at most log2(m) + 1, rounded up; what comes out
/// of order waits besides. Holds for the sums over `passes` runs of the program, in each of any
/// number of data-parallel replicas, where every micro-batch has samples and every stage can split
/// its backward as the program does. Zeros for a program without backwards.
/// Throws InvalidArgument for a program with copies of stages, actions outside its shape, another
/// number of stages and gradients, or fewer passes than 1. Cost: O(actions x log m x sums that
/// wait) for each pass.
[[nodiscard]] PartialSumCount partial_sums(const Program& program,
                                           const std::vector<std::size_t>& gradient_bytes,
                                           int passes = 1);

}  // namespace millrace
