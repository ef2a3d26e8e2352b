// What a trainer is made of: parts, parameters and counters. Here for the sources that share it:
// the step (trainer.cpp), the loop around it (fit.cpp), checkpoints
// (saving.cpp), evaluation and prediction (evaluation.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "millrace/stages/loss.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/trainer.hpp"
#include "training/checkpoint/saver.hpp"
#include "training/watch/step_watch.hpp"

namespace millrace {

/// The learning rates of a run of steps: a curve, and the update that it counts from.
struct Rates {
  const LearningRate* curve;
  std::int64_t start = 0;

  [[nodiscard]] double at(std::int64_t update) const { return curve->at(update - start); }
};

/// Thread-safety: externally synchronised.
struct Trainer::State {
  State(TrainerParts given, const TrainerOptions& trainer_options);

  [[nodiscard]] bool hosts_loss() const;
  /// Of a mini-batch, over all passes.
  [[nodiscard]] int micro_batches() const { return options.accumulate * shape.micro_batches; }
  double weight_of(Batch& batch) const;
  void agree(StepResult& result, double& declared) const;
  StepReport step(StepData& data, double total_weight, const Rates& rates);
  StepReport step(Batch& batch, const Rates& rates);
  StepReport step(BatchSource& batches, const Rates& rates, Saving& saving);
  Batch& next_batch(BatchSource& batches);
  void know_data(const Dataset& dataset);
  void run(StepReport& report, StepData& data, double total_weight);
  StepResult run_pass(StepData& data, const StepSettings& settings, double& declared);
  void update(StepReport& report);
  using Tell = std::function<void(const StepRecord&)>;
  void inspect(double scale);
  void begin_records();
  void record(const StepReport& report, const Tell& tell);
  void require_progress();
  [[nodiscard]] Rates rates() const { return {&options.learning_rate}; }
  /// Changes the counters.
  template <class Change>
  void count(Change change) {
    TrainingCounters counters = store.counters();
    change(counters);
    store.set_counters(counters);
  }

  /// One forward-only pass, its result known to every member.
  StepResult evaluate(StepData& data);
  /// `use` is given the results over all of `data`, mini-batch after mini-batch.
  void evaluate(const Dataset& data,
                std::int64_t batch_size,
                const std::function<void(StepResult)>& use);

  ProcessGroup alone;
  TrainerOptions options;
  std::shared_ptr<const Optimizer> optimizer;
  TrainerParts parts;
  ProcessGroup& group;
  Shape shape;
  LossScaleOptions loss_scale;
  TrainingState store;
  /// What a checkpoint of now would say, without shards.
  [[nodiscard]] Manifest manifest() const;
  /// Made when it is first needed.
  Saver& checkpoints();

  ResumeReport loaded;         // empty: the training began here
  std::string data_digest;     // of what fit() trains on; empty: not known
  std::string expected_data;   // of what the checkpoint was trained on
  bool goes_on = false;        // the next fit() over a data set begins where the counters stand
  const Loss* loss = nullptr;  // of the last stage, when it is built in and hosted here
  std::function<void(std::span<Parameter* const>)>* before_update = nullptr;  // the trainer's
  std::uint64_t evaluations = 0;  // forward-only steps run: names them, and nothing else
  std::function<void(const GradientInspection&)>* on_gradients = nullptr;  // the trainer's
  std::int64_t inspections = 0;
  StepTimes times;                   // since the last record
  std::unique_ptr<StepWatch> watch;  // where records are asked for
  std::unique_ptr<Saver> saver;      // last: it reads the store
};

}  // namespace millrace
