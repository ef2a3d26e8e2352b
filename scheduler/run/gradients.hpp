// Gradients added one to another: what reductions and outputs with several consumers are made of.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/sum_tree.hpp"
#include "millrace/core/ids.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/core/tensor_list.hpp"
#include "millrace/core/tensor_pool.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/scheduler/run/grid.hpp"

namespace millrace::run {

/// sum += term, element by element, in their own type. Throws Mismatch when they differ in dtype or
/// shape, InvalidArgument for a dtype other than f32 and f64.
void add_gradient(Tensor& sum, const Tensor& term, Stage stage);

[[nodiscard]] Tensor copy_into(TensorPool& pool, const Tensor& from);

/// Stages add to the gradients of their parameters in every pass; this keeps those
/// gradients to one micro-batch (a leaf) at a time. The slices of a leaf add up inside it, in the
/// order of their passes. What waits for its partner in the tree waits in tensors of the pool, and
/// so does a leaf that another one interrupts. When all leaves are there, the gradients hold their
/// sum.
/// Thread-safety: externally synchronised. Cost of a leaf: the gradients are read and written twice
/// (copied, set to zero), and once more for each sum that it completes.
class GradientTree {
 public:
  explicit GradientTree(const HostedStage& hosted)
      : stage_(hosted.stage), parameters_(hosted.body->parameters()) {}

  /// A step over the leaves of `node`, each of `passes_per_leaf` passes. Throws InvalidArgument
  /// when that is not a node of the tree.
  void begin_step(const SumTree& tree, LeafRange node, int passes_per_leaf);

  /// The next pass adds to the gradients of `leaf`. `meter` counts the bytes of all sums that the
  /// tree holds besides the gradients.
  void open(int leaf, TensorPool& pool, StashMeter& meter);

  /// A pass of the leaf that was opened has ended. `is_empty`: of no samples.
  void close(bool is_empty, TensorPool& pool, StashMeter& meter);

  /// Between two passes of the program or at the end of a step: whether all leaves so far are
  /// whole.
  [[nodiscard]] bool is_between_leaves() const { return !open_ && interrupted_.empty(); }
  [[nodiscard]] bool is_complete() const { return is_between_leaves() && given_; }
  /// Of a complete one: false when all leaves were empty.
  [[nodiscard]] bool has_sum() const { return has_sum_; }

  /// Drops everything that waits.
  void clear() noexcept;

 private:
  struct Leaf {
    int number = 0;
    int passes = 0;       // that have ended
    TensorList sum = {};  // while another one is open
  };

  [[nodiscard]] TensorList take_gradients(TensorPool& pool, StashMeter& meter) const;
  void put_gradients(const TensorList& sum, StashMeter& meter) const;

  Stage stage_;
  std::vector<Parameter*> parameters_;
  std::optional<PartialSums<TensorList>> sums_;
  int passes_per_leaf_ = 1;
  std::optional<Leaf> open_;
  std::vector<Leaf> interrupted_;
  bool given_ = false;  // the whole sum lies in the gradients
  bool has_sum_ = false;
};

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

/// One stage's share in it. Each copy has its own part of the stage's gradients, which it gets from
/// all others and adds up in their order. Of what every copy needs whole, cut into as many blocks
/// as there are copies, every process gets the sum: 2 (d - 1) / d of the bytes leave each process
/// and arrive, as in a ring, in two rounds instead of 2 (d - 1). Of what each copy needs its share
/// of (HostedStage::shares) that is the part it adds, and the first round is all: (d - 1) / d.
/// Thread-safety: externally synchronised, on the endpoint's thread.
class GradientAllReduce {
 public:
  /// The position has an endpoint, and must outlive this. `at_once`: `start` also waits.
  /// `needed_whole`, by parameter: in spite of the shares; empty: none. Throws InvalidArgument for
  /// a gradient that is not f32.
  GradientAllReduce(const HostedStage& hosted,
                    const GridPosition& position,
                    bool at_once,
                    const std::vector<bool>& needed_whole = {});

  [[nodiscard]] bool is_at_once() const { return at_once_; }
  enum class Progress : std::uint8_t { None, Started, Added, Done };
  [[nodiscard]] Progress progress() const { return progress_; }
  /// Whether messages of others are still to come.
  [[nodiscard]] bool is_under_way() const {
    return progress_ == Progress::Started || progress_ == Progress::Added;
  }
  void begin_step();

  /// Sends the others what they add up. `has_sum` false: all micro-batches of this copy were empty.
  void start(const StepSettings& settings, bool has_sum, TensorPool& pool);

  /// Does what can be done with the messages that are here: between passes, so that the second
  /// round runs next to them as the first does. Throws as finish().
  void go_on(const StepSettings& settings, TensorPool& pool);

  /// Waits for what the others send, adds, and leaves the sum of all copies in the gradients, of
  /// shares in this copy's alone. Throws what the endpoint throws, and Mismatch for a part of
  /// another length.
  void finish(const StepSettings& settings, Deadline deadline, TensorPool& pool);

 private:
  struct Piece {
    std::size_t parameter = 0;
    ElementRange range;
  };
  using Pieces = std::vector<Piece>;

  void cut_whole(const std::vector<bool>& is_whole);
  void cut_shares(const std::vector<bool>& is_whole);
  [[nodiscard]] const Pieces& pieces(int round, int copy) const;
  [[nodiscard]] Rank process(int copy) const;
  [[nodiscard]] MessageTag tag(const StepSettings& settings, int round, int from) const;
  [[nodiscard]] Tensor take(const Pieces& pieces, TensorPool& pool) const;
  void put(const Pieces& pieces, const Tensor& numbers) const;
  /// Until when to wait; nothing: not at all.
  using OptionalDeadline = std::optional<Deadline>;
  void go_on(const StepSettings& settings, TensorPool& pool, OptionalDeadline timeout);
  [[nodiscard]] bool take_messages(const StepSettings& settings,
                                   int round,
                                   OptionalDeadline timeout);
  [[nodiscard]] std::optional<TensorList> received(const StepSettings& settings,
                                                   int round,
                                                   int from,
                                                   OptionalDeadline timeout) const;
  void begin_round();
  void add_parts(const StepSettings& settings, TensorPool& pool);
  void give_sums(const StepSettings& settings, bool has_sum, TensorPool& pool) const;
  void put_sums();
  [[nodiscard]] std::optional<Tensor> added(std::vector<std::optional<Tensor>> parts,
                                            AccumulateOrder order) const;

  HostedStage hosted_;
  const GridPosition* position_;
  std::vector<Parameter*> parameters_;
  // By copy: its block of what all need, and that with its share of the rest.
  std::vector<Pieces> blocks_, parts_;
  bool gives_sums_ = false;  // there is something that all need
  bool at_once_;
  Progress progress_ = Progress::None;  // of this step
  bool has_sum_ = true;
  std::vector<std::optional<TensorList>> messages_;  // by copy, of the round that is under way
};

}  // namespace millrace::run
