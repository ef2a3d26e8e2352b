// Executors choose threads; the interpreter gives actions their effect. One contract for all.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/run/grid.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// Elements [first, last) of a parameter.
struct ElementRange {
  std::size_t first = 0, last = 0;
};

/// The body of every (replica, stage) that this process hosts. Not owned.
struct HostedStage {
  Replica replica;
  Stage stage;
  StageBody* body = nullptr;
  /// By parameter of the body and copy of the pipeline (GridPosition): which of the gradient's
  /// elements that copy moves. REDUCE_GRAD then gives it the sum of these and leaves the others as
  /// they are, but for weights that are tied or have copies in the pipeline itself, whose sum
  /// others wait for. A parameter without ranges, or all: every copy gets the whole sum.
  std::vector<std::vector<ElementRange>> shares = {};
};

/// What one step reads from outside. Calls may come from any executor thread, for different units
/// at the same time; each unit's inputs and targets are asked for once (twice never), and must stay
/// valid in the returned lists.
/// A trainer of several processes also takes those that no pass here needs, to compare what the
/// processes were given: one that does not hold them returns an empty list.
class StepData {
 public:
  virtual ~StepData() = default;
  /// Inputs of the first stage.
  virtual TensorList inputs(const Unit& unit) = 0;
  /// Targets for the last stage.
  virtual TensorList targets(const Unit& unit) = 0;
  /// Those of another sink (Shape::sinks): by default the same. Calls for the unit's sinks may come
  /// at the same time.
  virtual TensorList targets_of(const Unit& unit, Stage sink) {
    (void)sink;
    return targets(unit);
  }
  /// Index of the unit's first row in the mini-batch.
  [[nodiscard]] virtual std::int64_t first_sample(const Unit& unit) const = 0;
  /// Where the unit's slice begins in its sequence.
  [[nodiscard]] virtual std::int64_t first_position(const Unit& unit) const {
    (void)unit;
    return 0;
  }
  /// Whether the unit has no samples, so that it adds nothing to a sum.
  [[nodiscard]] virtual bool is_empty(const Unit& unit) const {
    (void)unit;
    return false;
  }
  /// Evaluation only: what the last stage gives for a unit, as soon as it does and before anything
  /// that comes after it in its rank. Inputs of later units may wait for it where ranks have
  /// threads of their own, or where the unit comes before them in one order of all.
  virtual void predicted(const Unit& unit, const TensorList& outputs) { (void)unit, (void)outputs; }
};

/// How the gradients of a step's micro-batches are added.
enum class AccumulateOrder : std::uint8_t {
  /// One after the other, ((g0 + g1) + g2)..., in the order in which the program has them.
  Ascending,
  /// By SumTree over all micro-batches of the step, in any order.
  Tree
};

/// "ascending" or "tree"; throws InvalidArgument for another name.
[[nodiscard]] AccumulateOrder accumulate_order(std::string_view name);
[[nodiscard]] std::string_view name_of(AccumulateOrder order);

/// Settings of one step.
struct StepSettings {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  double loss_scale = 1;                 ///< see PassContext
  std::vector<double> loss_scales = {};  ///< of each sink; empty: `loss_scale` for all
  bool training = true;
  /// No wait inside the step lasts longer than this.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // A step may run the program several times and add the gradients up: which pass this is, from 0,
  // and of how many. Gradients are reduced (REDUCE_GRAD) in the last one alone.
  int pass = 0;
  int passes = 1;
  AccumulateOrder order = AccumulateOrder::Ascending;

  /// The number of a micro-batch of this pass among all of the step.
  [[nodiscard]] MicroBatch in_step(MicroBatch in_pass, const Shape& shape) const {
    return MicroBatch{pass * shape.micro_batches + in_pass.value};
  }
};

/// What a step gave back.
struct StepResult {
  LossSum loss;                      ///< summed in ascending unit order
  std::vector<LossSum> unit_losses;  ///< [micro_batch * slices + slice]; zeros where not hosted
  /// The same of the sinks before the last stage, ascending.
  std::vector<std::vector<LossSum>> other_losses = {};
  std::int64_t samples = 0;  ///< rows of the first stage's inputs, where it is hosted; of slice 0
  std::vector<TensorList> outputs;            ///< evaluation only: predictions per unit
  std::vector<std::size_t> peak_stash_bytes;  ///< per rank, counted
  /// Per rank, counted over the passes of the step so far: sums of gradients that a tree of sums
  /// holds besides them. What partial_sums predicts; empty for the ascending order.
  std::vector<std::size_t> peak_sum_bytes;
};

/// A pass failed. The message names rank, stage, micro-batch and action; the cause is nested
/// (std::rethrow_if_nested).
class StepError : public Error, public std::nested_exception {
 public:
  StepError(const std::string& what, Rank rank, const Action& action)
      : Error(what), rank_(rank), action_(action) {}

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] const Action& action() const { return action_; }

 private:
  Rank rank_;
  Action action_;
};

/// Runs a program's actions once per call of `run`, which is a step or one pass of it.
///
/// First error wins: the rest is cancelled, everything is joined, all stashes are dropped, and one
/// StepError is thrown; the next step works.
/// Thread-safety: externally synchronised.
class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;

  virtual StepResult run(StepData& data, const StepSettings& settings) = 0;

  /// Start and end of every action of the last run in seconds since its start, aligned with
  /// `program()`; rows of ranks that this process does not run are empty.
  [[nodiscard]] virtual const Timeline& timeline() const = 0;

  /// Start of the last run, from which `timeline()` counts.
  [[nodiscard]] virtual std::chrono::steady_clock::time_point started() const = 0;

  /// The program as executed (for ranks: with sends and receives).
  [[nodiscard]] virtual const Program& program() const = 0;

  /// Calls body(r) once for every hosted rank, in parallel where the executor has threads; for the
  /// optimizer. The first exception is rethrown after all have ended.
  virtual void for_each_rank(const std::function<void(Rank)>& body) = 0;
};

struct ExecutorOptions {
  /// Threads of the flow graph; 0 means one per core. More than cores only on purpose: stages that
  /// wait rather than compute.
  int threads = 0;
  /// Lets the flow graph prefer the action with the longest remaining path. Costs 50 to 600 ns an
  /// action; pays when actions are long and ranks outnumber cores.
  bool priorities = false;
  /// Mean time of an action below which the flow graph runs a step inline, in one valid order on
  /// the calling thread: giving so short an action to another thread takes longer than the action.
  /// Found from the times of earlier steps, the first of which always uses all threads. 0 means
  /// never.
  std::chrono::nanoseconds inline_below = std::chrono::nanoseconds(250);
  /// Threads of a rank, its own one included, that share the work of one pass where its kernels cut
  /// it into blocks. Bits are the same for any number; no more run than there are cores. From 1 to
  /// 1024.
  int threads_per_rank = 1;
  /// Records start and end of every action; two clock readings each (one on rank executors).
  bool record_timeline = true;
};

/// The executors of one process.
enum class ExecutorKind : std::uint8_t {
  /// "flow-graph": oneTBB, one node per chain of actions that only program order joins; the fastest
  /// in one process.
  FlowGraph,
  /// "ranks": one thread per rank, values through in-process mailboxes.
  Ranks,
  /// "sequential": the calling thread, one valid order. The reference.
  Sequential
};

/// The kind with this name; throws InvalidArgument for another name.
[[nodiscard]] ExecutorKind executor_kind(std::string_view name);
[[nodiscard]] std::string_view name_of(ExecutorKind kind);
[[nodiscard]] std::span<const ExecutorKind> executor_kinds();

/// Builds an executor for all ranks of `program` in this process.
///
/// `program` is compute only or already has messages, reductions or recompute; what is missing is
/// added: reductions where a stage has replicas, messages for Ranks. `stages` holds a body for
/// every (replica, stage); the bodies must outlive the executor. Throws InvalidArgument for a
/// program that verify() objects to (with its first message), and for a missing body. Cost:
/// O(actions).
[[nodiscard]] std::unique_ptr<Executor> make_executor(ExecutorKind kind,
                                                      Program program,
                                                      std::span<const HostedStage> stages,
                                                      const ExecutorOptions& options = {});

/// What will be right but not as good as the plan promises: a message for each stage whose
/// backward the program splits and the body does not. Worth a look before the first step. Cost:
/// O(actions).
[[nodiscard]] std::vector<std::string> plan_warnings(const Program& program,
                                                     std::span<const HostedStage> stages);

/// Builds the executor of the rank at this position. It executes the rank's list in order on the
/// calling thread, against the ranks of its data-parallel replica. `stages` holds the bodies of
/// that rank (others are ignored); the endpoint must outlive the executor. A failure cancels the
/// endpoint with the message, so that the other ranks' waits end too; a rank whose wait was ended
/// so throws Cancelled with that message. Throws InvalidArgument as make_executor.
[[nodiscard]] std::unique_ptr<Executor> make_rank_executor(Program program,
                                                           std::span<const HostedStage> stages,
                                                           const GridPosition& position,
                                                           const ExecutorOptions& options = {});

/// The same where the endpoint's world is one copy: its rank is the place.
[[nodiscard]] std::unique_ptr<Executor> make_rank_executor(Program program,
                                                           std::span<const HostedStage> stages,
                                                           Endpoint& endpoint,
                                                           const ExecutorOptions& options = {});

}  // namespace millrace
