// What REDUCE_GRAD does: the gradients of a stage's copies are added in replica order, and then
// those of tied weights in the order of the layers, so that every copy gets the same bits wherever
// it lives.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "millrace/core/tensor_list.hpp"
#include "millrace/core/tensor_pool.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/scheduler/run/executor.hpp"

namespace millrace::run {

/// One copy of a stage that takes part in a reduction.
struct ReductionMember {
  Replica replica;
  Stage stage;
  Rank rank;
  StageBody* body = nullptr;  ///< null where the copy lives in another process
};

/// All copies that are reduced together: those of a stage, and of the stages tied to it.
/// Thread-safety: `arrive` from any thread; the rest externally synchronised.
class Reduction {
 public:
  /// `ties` are those between stages of the members. Throws InvalidArgument when a stage that lives
  /// here lacks a tied weight or has tied weights in another order than they are named in.
  Reduction(std::vector<ReductionMember> members, std::vector<StageTie> ties);

  [[nodiscard]] std::span<const ReductionMember> members() const { return members_; }
  [[nodiscard]] bool has_members_elsewhere() const { return here_ < members_.size(); }
  /// The ranks of the members that live elsewhere, each once.
  [[nodiscard]] std::span<const Rank> other_ranks() const { return other_ranks_; }

  void begin_step() { arrived_.store(0, std::memory_order_relaxed); }

  /// One REDUCE_GRAD of a member that lives here. True for the last of them, which adds: it sees
  /// the gradients that the others have finished before.
  [[nodiscard]] bool arrive() {
    return arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == here_;
  }

  /// Copies of what a member that lives here owes the members on another rank: all gradients, where
  /// that rank has a copy of the same stage; else those that are tied.
  [[nodiscard]] TensorList gradients_for(Rank rank,
                                         Replica replica,
                                         Stage stage,
                                         TensorPool& pool) const;

  /// Adds and gives every member that lives here the sums: ((g0 + g1) + ...) over the replicas of
  /// each stage, then over each tie. `received[i]` is what member i sent, empty where it lives
  /// here. Throws Mismatch when gradients differ in number, dtype or shape, InvalidArgument for a
  /// dtype other than f32 and f64.
  void add(std::vector<TensorList>& received, TensorPool& pool) const;

 private:
  struct TiedGradient {
    Stage stage;
    std::size_t sent = 0;       // its place among the tied gradients of the stage
    std::size_t parameter = 0;  // its place in parameters(), where the stage lives here
  };
  using Gradients = std::vector<Tensor*>;

  void find_tied(const std::vector<StageTie>& ties);
  [[nodiscard]] std::size_t parameter_of(const StageWeight& weight) const;
  [[nodiscard]] bool lives_here(Stage stage) const;
  [[nodiscard]] Gradients gradients(std::size_t member, std::vector<TensorList>& received) const;
  void add_replicas(Stage stage, std::vector<TensorList>& received, TensorPool& pool) const;
  void add_tie(const std::vector<TiedGradient>& tie,
               std::vector<TensorList>& received,
               TensorPool& pool) const;

  std::vector<ReductionMember> members_;             // by stage and replica
  std::vector<std::vector<Parameter*>> parameters_;  // by member; none where it lives elsewhere
  std::vector<std::vector<TiedGradient>> ties_;
  std::vector<Rank> other_ranks_;
  std::size_t here_ = 0;
  std::atomic<std::size_t> arrived_ = 0;
};

}  // namespace millrace::run
