// Executors choose threads; the interpreter gives actions their effect. One contract for all.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
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
  /// By SumTree over all micro-batches of the step, in whatever order they come.
  Tree
};

/// "ascending" or "tree"; throws InvalidArgument for another name.
[[nodiscard]] AccumulateOrder accumulate_order(std::string_view name);
[[nodiscard]] std::string_view name_of(AccumulateOrder order);

/// Settings of one step.
struct StepSettings {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  double loss_scale = 1;  ///< see PassContext
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
  std::int64_t samples = 0;  ///< rows of the first stage's inputs, where it is hosted; of slice 0
  std::vector<TensorList> outputs;            ///< evaluation only: predictions per unit
  std::vector<std::size_t> peak_stash_bytes;  ///< per rank, counted
  /// Per rank, counted over the passes of the step so far: sums of gradients that a tree of sums
  /// holds beside them. What partial_sums predicts; empty for the ascending order.
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

  /// When the last run began, what `timeline()` counts from; the clock's epoch where an executor
  /// does not say.
  [[nodiscard]] virtual std::chrono::steady_clock::time_point started() const { return {}; }

  /// The program as executed (for ranks: with sends and receives).
  [[nodiscard]] virtual const Program& program() const = 0;

  /// Calls body(r) once for every hosted rank, in parallel where the executor has threads; for the
  /// optimizer. The first exception is rethrown after all have ended.
  virtual void for_each_rank(const std::function<void(Rank)>& body) = 0;
};

}  // namespace millrace
