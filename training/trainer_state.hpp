// What a trainer is made of: parts, parameters and counters. Here for the sources that share it:
// the trainer (trainer.cpp), its step (step.cpp), the loop around it (fit.cpp), checkpoints
// (saving.cpp), evaluation and prediction (evaluation.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "millrace/training/state.hpp"
#include "millrace/training/step_watch.hpp"
#include "millrace/training/trainer.hpp"
#include "training/batch_digest.hpp"
#include "training/checkpoint/saver.hpp"
#include "training/optimizer_shards.hpp"

namespace millrace {

/// The learning rates of a run of steps: a curve, and the update that it counts from.
struct Rates {
  const LearningRate* curve;
  std::int64_t start = 0;

  [[nodiscard]] double at(std::int64_t update) const { return curve->at(update - start); }
};

/// Throws InvalidParameter for options of validations without data to validate by, or without a
/// folder.
void check_validation(const TrainerOptions& options, bool validates);

/// Thread-safety: externally synchronised.
struct Trainer::State {
  State(TrainerParts given);

  [[nodiscard]] bool hosts_loss() const;
  /// Of a mini-batch, over all passes; of one copy of the pipeline, and of all.
  [[nodiscard]] int micro_batches_of_copy() const {
    return options.step.accumulate * shape.micro_batches;
  }
  [[nodiscard]] int micro_batches() const {
    return parts.seat.grid().data() * micro_batches_of_copy();
  }
  double weight_of(Batch& batch) const;
  void agree(StepResult& result, double& declared, int copies, bool compares_batch);
  /// Asked between two passes of a step whether to leave it there. In all processes alike.
  using Pause = std::function<bool()>;
  /// Sums that wait for others in the tree are in no checkpoint.
  [[nodiscard]] bool may_pause() const {
    return options.step.accumulate_order == AccumulateOrder::Ascending &&
           parts.seat.grid().data() == 1;
  }
  /// Nothing where the step was paused.
  std::optional<StepReport> step(StepData& data,
                                 double total_weight,
                                 const Rates& rates,
                                 const Pause& pause = {});
  std::optional<StepReport> step(Batch& batch, const Rates& rates, const Pause& pause = {});
  void begin_fit(const BatchSource& batches);
  Batch& next_batch(BatchSource& batches);
  void know_data(const Dataset& dataset);
  bool run(StepReport& report, StepData& data, double total_weight, const Pause& pause);
  void check_partial() const;
  void take_partial(StepReport& report, StepSettings& settings);
  void keep_partial(const StepReport& report, const StepSettings& settings);
  void drop_partial();
  /// What passes read: the mini-batch, among several processes as their digest of it takes it.
  StepData& watched(StepData& data, int micro_batches);
  StepResult run_pass(StepData& data, const StepSettings& settings, double& declared);
  void update(StepReport& report);
  void skip(StepReport& report);
  using Tell = std::function<void(const StepRecord&)>;
  void inspect(double scale);
  void begin_records();
  void record(const StepReport& report, const Tell& tell);
  void require_progress();
  [[nodiscard]] Rates rates() const { return {&options.step.learning_rate}; }
  /// Changes the counters.
  template <class Change>
  void count(Change change) {
    TrainingCounters counters = store.counters();
    change(counters);
    store.set_counters(counters);
  }

  /// One forward-only pass, its result known to every member. `compares_batch`: they were given
  /// data that nothing has compared yet.
  StepResult evaluate(StepData& data, bool compares_batch);
  /// `use` is given the results over all of `data`, pass after pass; the last one of a mini-batch
  /// has its loss. With `stops`, which is asked before each, all members have compared `data`.
  /// False: it was stopped.
  bool evaluate(const Dataset& data,
                std::int64_t batch_size,
                const std::function<void(StepResult)>& use,
                const Pause& stops = {});
  /// The training continues a checkpoint of the folder in which it saves.
  [[nodiscard]] bool is_resumed_here() const;
  /// Before the first step of a fit; null: it does not validate.
  void begin_validation(const Dataset* data);
  /// After a step of that epoch. All members have the same report, but for the seconds. Nothing if
  /// it was stopped, which changes no counter.
  std::optional<ValidationReport> validate(const Dataset& data,
                                           std::int64_t epoch,
                                           const Pause& stops);

  ProcessGroup alone;
  TrainerOptions options;
  std::shared_ptr<const Optimizer> optimizer;
  TrainerParts parts;
  ProcessGroup& group;
  Shape shape;
  LossScaleOptions loss_scale;
  TrainingState store;
  std::optional<OptimizerShards> shards;  // where copies share the optimizer's work
  /// What a checkpoint of now would say, without shards.
  [[nodiscard]] Manifest manifest() const;
  [[nodiscard]] std::map<std::string, std::string> run_facts() const;
  [[nodiscard]] OptimizerShards* optimizer_shards() { return shards ? &*shards : nullptr; }
  /// Made when it is first needed.
  Saver& checkpoints();

  ResumeReport loaded;        // empty: the training began here
  std::string data_digest;    // of what fit() trains on; empty: not known
  std::string expected_data;  // of what the checkpoint was trained on
  bool is_updating = false;   // some of the state may be behind the update, and some before it
  bool goes_on = false;       // the next fit() over a data set begins where the counters stand
  const StageBody* last_stage = nullptr;  // when it is hosted here
  std::function<void(std::span<Parameter* const>)>* before_update = nullptr;  // the trainer's
  bool gradients_wanted = false;  // in some process: `before_update` is given whole gradients
  std::uint64_t evaluations = 0;  // forward-only steps run: names them, and nothing else
  std::function<void(const GradientInspection&)>* on_gradients = nullptr;  // the trainer's
  std::int64_t inspections = 0;
  BatchDigest batch_digest;          // of the mini-batch of this step
  StepTimes times;                   // since the last record
  std::optional<Score> validation;   // the last one of a fit that validates
  std::unique_ptr<StepWatch> watch;  // where records are asked for
  std::unique_ptr<Saver> saver;      // last: it reads the store
};

}  // namespace millrace
