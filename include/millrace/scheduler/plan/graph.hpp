// Graph: the program's actions as nodes, program order and data dependencies as edges. Built once;
// the verifier proves it acyclic, the simulator takes its longest path, the flow-graph executor
// runs it. What was verified is what runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

/// Number of an action: rank by rank, in program order.
using Node = std::uint32_t;

/// Nodes are the actions of `program` (rank 0 first, in order). Edges into a node: its predecessor
/// on the rank, and the producers of what it needs:
///   F(s,i,k)   <- F(s-1,i,k), F(s,i,k-1) if sliced
///   B/I(s,i,k) <- F(s,i,k), B/I(s+1,i,k), B/I(s,i,k+1) if sliced, recompute of (s,i,k) if there is
///   one W <- I;  R <- F;  SEND <- its producer;  RECV <- its SEND;  consumer <- RECV
///   REDUCE_GRAD(s) <- every B/W of s in all replicas;  STEP <- every REDUCE_GRAD of the rank, else
///   its B/W.
/// In a program with sends and receives, a cross-rank data edge runs through them.
/// The program must outlive the graph. Requires a program that passes the structural rules of
/// verify(); a missing producer simply gives no edge.
/// Cost: O(actions); about 20 bytes per action. Thread-safety: immutable, share freely.
class Graph {
 public:
  explicit Graph(const Program& program);

  [[nodiscard]] std::size_t size() const { return actions_; }
  [[nodiscard]] const Program& program() const { return *program_; }

  /// First node of a rank; node - first(rank) is the position in its list.
  [[nodiscard]] Node first(Rank rank) const { return first_[rank.index()]; }
  [[nodiscard]] Rank rank(Node node) const;
  [[nodiscard]] const Action& action(Node node) const;

  /// Producers this node waits for, without its predecessor on the rank.
  [[nodiscard]] std::span<const Node> producers(Node node) const {
    return {producers_.data() + producer_start_[node],
            producers_.data() + producer_start_[node + 1]};
  }

 private:
  const Program* program_;
  std::size_t actions_ = 0;
  std::vector<Node> first_;  // ranks + 1 entries
  std::vector<std::uint32_t> producer_start_;
  std::vector<Node> producers_;
};

}  // namespace millrace
