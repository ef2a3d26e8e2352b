// Shape: how many ranks, micro-batches, chunks and slices, and which rank holds which stage. With a
// program it is a whole schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"

namespace millrace {

/// Which rank executes each stage of each replica.
/// Thread-safety: immutable, share freely.
class Placement {
 public:
  Placement() = default;

  /// `rank_of[replica][stage]`. Throws InvalidArgument when a replica has another number of stages
  /// or a rank is negative.
  explicit Placement(std::vector<std::vector<Rank>> rank_of);

  /// Stage s on rank s; S = p.
  static Placement straight(int ranks);
  /// Stage s on rank s mod p; S = p v.
  static Placement loop(int ranks, int chunks);
  /// Two chunks: stage s on rank s, then back; S = 2 p.
  static Placement vee(int ranks);
  /// Chunk c runs left to right when even, right to left when odd; S = p v. vee is zigzag with v
  /// = 2.
  static Placement zigzag(int ranks, int chunks);
  /// Two replicas of p stages: replica 0 straight, replica 1 on rank p-1-s.
  static Placement mirrored(int ranks);

  [[nodiscard]] int stages() const {
    return rank_of_.empty() ? 0 : static_cast<int>(rank_of_.front().size());
  }
  [[nodiscard]] int replicas() const { return static_cast<int>(rank_of_.size()); }
  [[nodiscard]] Rank rank(Replica replica, Stage stage) const {
    return rank_of_[replica.index()][stage.index()];
  }
  [[nodiscard]] Rank rank(Stage stage) const { return rank_of_.front()[stage.index()]; }

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  std::vector<std::vector<Rank>> rank_of_;
};

/// Output `output` of stage `from` is input `input` of stage `to`.
/// Thread-safety: immutable, share freely.
struct StageEdge {
  Stage from;
  int output = 0;
  Stage to;
  int input = 0;

  friend bool operator==(const StageEdge&, const StageEdge&) = default;
};

/// A weight of a stage, by its global name ("layers.0.weight"), the same in every cut.
/// Thread-safety: immutable, share freely.
struct StageWeight {
  Stage stage;
  std::string name;

  friend bool operator==(const StageWeight&, const StageWeight&) = default;
};

/// Weights of several layers, in one stage or in several, that are one weight (an embedding and the
/// head): REDUCE_GRAD of their stages gives each the sum of all their gradients, added in f32 in
/// the order in which they stand here, which is that of the layers.
/// Thread-safety: immutable, share freely.
struct StageTie {
  std::vector<StageWeight> weights;

  friend bool operator==(const StageTie&, const StageTie&) = default;
};

/// The frame a program lives in.
/// Thread-safety: immutable, share freely.
struct Shape {
  int ranks = 1;          ///< p
  int micro_batches = 1;  ///< m
  int slices = 1;         ///< q; above 1 the slices of a micro-batch are causal (SCHEDULES 2.18)
  Placement placement;    ///< S stages per replica
  /// Which replica runs each micro-batch; empty means replica 0 runs all.
  std::vector<Replica> replica_of = {};
  bool forward_only = false;  ///< no backward is owed
  /// What flows between the stages; empty means a chain: the outputs of each are the inputs of the
  /// next, in order. StageGraph (stage_graph.hpp) answers questions about it.
  std::vector<StageEdge> edges = {};
  /// What is tied, in ascending order of the layers; StageGraph checks it.
  std::vector<StageTie> ties = {};
  /// Stages with a loss, ascending. They have no consumers. The last stage is among them: it has
  /// the main loss. Empty: the last stage alone. StageGraph checks them.
  std::vector<Stage> sinks = {};

  [[nodiscard]] int stages() const { return placement.stages(); }
  [[nodiscard]] int replicas() const { return placement.replicas(); }
  /// Stages per rank, v: S x replicas / p.
  [[nodiscard]] int chunks() const { return ranks == 0 ? 0 : stages() * replicas() / ranks; }
  [[nodiscard]] Rank rank(Replica replica, Stage stage) const {
    return placement.rank(replica, stage);
  }
  [[nodiscard]] Replica replica(MicroBatch micro_batch) const {
    return replica_of.empty() ? Replica{0} : replica_of[micro_batch.index()];
  }
  /// Forward actions of the whole shape: S x m x q.
  [[nodiscard]] std::int64_t forwards() const {
    return std::int64_t{stages()} * micro_batches * slices;
  }

  friend bool operator==(const Shape&, const Shape&) = default;
};

}  // namespace millrace
