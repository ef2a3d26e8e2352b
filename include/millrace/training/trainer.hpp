// Trainer: takes mini-batches and updates every stage. It defines a step (weighted mean, one norm,
// one overflow check, one clip factor, one update); executors schedule and run its actions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/scheduler/run/grid.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/loader.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/reports.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/trainer_options.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// Custom stages, which a trainer owns.
using Bodies = std::vector<std::unique_ptr<StageBody>>;

/// A trainer's parts when they are made elsewhere: a worker process hosts some of the stages, runs
/// one rank's executor, and agrees with the others through its group.
struct TrainerParts {
  TrainerOptions options = {};  ///< that they were made with
  std::unique_ptr<Executor> executor;
  /// Runs the forward-only program of the same shape (see forward_program); may be null when
  /// evaluate() is not called.
  std::unique_ptr<Executor> evaluator;
  std::vector<HostedStage> stages;   ///< those of this process
  Bodies bodies;                     ///< what `stages` points to, if owned here
  ProcessGroup* group = nullptr;     ///< not owned; null: this process is alone
  GridPosition seat = {};            ///< this process's copy and place, of several
  DType precision = DType::F32;      ///< of the model
  std::string model = {};            ///< ModelSpec::text, if known: see resume
  std::vector<int> boundaries = {};  ///< as in Plan, of a model's stages
  /// Values a channel that a batch norm sees of one sample, the fewest; 0: none, or not known.
  std::int64_t norm_values = 0;
};

/// The gradient was not finite in StepOptions::max_skipped steps in a row: nothing is trained
/// any more. All processes of a training throw it after the same step.
class Diverged : public Error, public NamesParameters {
 public:
  explicit Diverged(const ParameterText& sentence)
      : Error(sentence.text()), NamesParameters(sentence) {}
};

/// A checkpoint could not be saved, and SaveErrors::Throw ends the training there. All processes of
/// a training throw it after the same step.
class SaveFailed : public StorageError {
 public:
  using StorageError::StorageError;
};

/// The forward-only program of a schedule's shape, for evaluation: micro-batch after micro-batch,
/// each through the stages of replica 0 in order. Cannot deadlock: it is a restriction of one
/// order.
[[nodiscard]] Program forward_program(const Shape& shape);

/// Trains a model that is cut into stages.
///
///     const ModelSpec model = parse_model("mlp:64-96-96-10");
///     const TrainTest data = load_data("digits", 1);
///     Trainer trainer(model, {.shape = {.ranks = 3}}, {.fit = {.epochs = 20}});
///     trainer.fit(data.train);
///     const double accuracy = trainer.evaluate(data.test).accuracy();
///
/// or, with a loop of your own:
///
///     Loader loader(data.train, {.batch_size = 128, .micro_batches = 8});
///     while (!enough) trainer.step(loader.next());
///
/// A step's gradient is that of (sum of the losses) / (sum of their weights) over the mini-batch,
/// whatever the sizes of its micro-batches. Weights, after any number of steps, have the same bits
/// for every cut, schedule with ascending accumulation, and executor.
/// Thread-safety: externally synchronised; callbacks run on the calling thread.
class Trainer {
 public:
  /// Generates the schedule, partitions the model into stages and initialises them by the seed.
  /// Throws InvalidArgument for options that do not fit, with the value and the bound.
  explicit Trainer(const ModelSpec& model,
                   const PipelineOptions& pipeline = {},
                   const TrainerOptions& options = {});

  /// As above with the program and the boundaries of a plan; without boundaries the partition is
  /// as even as possible.
  Trainer(const ModelSpec& model, const Plan& plan, const TrainerOptions& options = {});

  /// Custom stages: one body per stage of the program, replica after replica. Throws as above, and
  /// for boundaries, which partition a model.
  Trainer(const Plan& plan, Bodies bodies, const TrainerOptions& options = {});

  /// The parts of one process of several; see rank_parts. Throws Mismatch on every member of the
  /// group when their programs or settings differ, as fit() and evaluate() do when their data
  /// differs.
  explicit Trainer(TrainerParts parts);

  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer();

  /// One step over a mini-batch, which has as many micro-batches as the program, `accumulate` times
  /// as many where that is set. The total weight is asked of the last stage's loss before the step
  /// (the number of samples when the last stage is not a StageModule).
  /// Throws StepError when a pass or the optimizer fails: gradients are zeroed, and the next step
  /// works. A failure inside the optimizer leaves the parameters that were already moved where they
  /// are: load a checkpoint when that matters. Throws InvalidArgument when the learning rate
  /// needs to know the number of updates, when each micro-batch of a mini-batch gives a batch norm
  /// one value a channel, and Diverged after max_skipped skipped steps in a row.
  StepReport step(Batch& batch);

  /// One step over data of your own, whose losses' weights add up to `total_weight` (throws
  /// InvalidArgument after the passes if they do not, and updates nothing). Asked for as many
  /// micro-batches as a mini-batch has.
  StepReport step(StepData& data, double total_weight);

  /// Trains for options().fit over `data`, and tells on_step and on_epoch. Ends
  /// early, between two steps or two passes of one, when `stop` asks for it. Changes no options: a
  /// second call goes on from the weights of the first, and a learning rate without total_updates
  /// starts again.
  ///
  /// `validation` (see hold_out) is evaluated when options().validation says so; weights have the
  /// same bits with and without it. Throws InvalidArgument for options that need it, and when
  /// keep_best has no folder.
  FitReport fit(const Dataset& data,
                const std::stop_token& stop = {},
                const Dataset* validation = nullptr);

  /// Trains over mini-batches of yours, from their position until it has passed
  /// options().fit.epochs epochs, or as many steps as options().fit.steps have run since the fit
  /// began. A source at its very beginning begins a fit; anywhere else it goes on with the one that
  /// state().counters() tell of:
  ///
  ///     Loader loader(data, trainer.loader_options());
  ///     loader.seek(trainer.state().counters().position);
  ///     trainer.fit(loader);
  ///
  /// Stopped between two passes it leaves the source at the mini-batch of the unfinished update,
  /// whose sums state() holds. The fit that begins there finishes it; one that begins elsewhere
  /// drops them.
  ///
  /// Throws InvalidArgument when a learning rate without total_updates cannot know the number of
  /// steps, and SaveFailed as SaveErrors::Throw, or when another job has locked the save folder.
  FitReport fit(BatchSource& batches,
                const std::stop_token& stop = {},
                const Dataset* validation = nullptr);

  /// Saves a checkpoint of the state as it is to options().save.folder, and waits until it is
  /// durable. A collective. Throws InvalidArgument without a folder, when the folder has
  /// checkpoints newer than the state or of a training that this one does not go on from, and
  /// StorageError when another job has locked the folder or it cannot be written; a save that fails
  /// later is a fault in the report.
  SaveReport save();

  /// Takes the state from a checkpoint: `path` is its folder, or the folder of many, of which the
  /// newest undamaged one is taken. Of any number of stages, ranks and processes, of any schedule
  /// and executor. The next fit() over a data set goes on where it was saved. A collective.
  ///
  /// All of it is compared with its hashes before anything changes: throws DataError, which names
  /// file and tensor, when it is damaged or there is none, and Mismatch, which names every
  /// difference, when model, kind of optimizer, precision or seed are not the same (fit(): when the
  /// data is not), and of a checkpoint inside an update: order of accumulation, copies of the model
  /// or micro-batches, or where no pass begins where its sums end. Other settings stay those of
  /// options(); which of them were others is told.
  /// Where options().save names a folder: waits for its lock first, SaveOptions::lock_wait at most,
  /// and throws SaveFailed when another job keeps it.
  ResumeReport resume(const std::string& path);

  /// After resume(): all epochs or steps of options() had run when that checkpoint was saved, so
  /// fit() over a data set has nothing to do.
  [[nodiscard]] bool is_finished() const;

  /// How fit() loads a data set.
  [[nodiscard]] LoaderOptions loader_options() const;

  /// Loss and right predictions over `data`, `batch_size` samples at a time (0: as in one pass of
  /// the training).
  /// Changes nothing. Dropout is off.
  [[nodiscard]] Score evaluate(const Dataset& data, std::int64_t batch_size = 0);

  /// The same over one pass of data of your own, with as many micro-batches as the program.
  [[nodiscard]] Score evaluate(StepData& data);

  /// What the last stage gives for `data`: a row per sample, in their order. Targets are not
  /// needed. Nothing where the last stage lives in another process. Throws InvalidArgument when it
  /// gives another number of tensors than one per unit, and for documents, whose lengths differ.
  [[nodiscard]] Tensor predict(const Dataset& data, std::int64_t batch_size = 0);

  /// What the last stage gives for one pass of data of your own: a list per unit (micro_batch *
  /// slices + slice), empty where it lives in another process.
  [[nodiscard]] std::vector<TensorList> predict(StepData& data);

  /// Everything that steps change, by global name: read it and write it between two steps.
  [[nodiscard]] TrainingState& state();
  [[nodiscard]] const TrainingState& state() const;

  /// xxh3-128, as 32 hexadecimal digits, over all parameters in global name order: over each name
  /// and the xxh3-128 of that parameter's bytes, so that processes exchange 16 bytes a parameter.
  [[nodiscard]] std::string weights_hash();

  /// Updates done so far; skipped steps do not count.
  [[nodiscard]] std::int64_t global_step() const;
  [[nodiscard]] const TrainerOptions& options() const;
  /// The executor, for its program and the timeline of the last step, of its last pass.
  [[nodiscard]] const Executor& executor() const;
  [[nodiscard]] std::span<const HostedStage> stages() const;

  /// What will be right but not as good as the schedule promises (see plan_warnings), or depends on
  /// the number of micro-batches (batch norm), in epochs of so many samples, 0: unknown.
  [[nodiscard]] std::vector<std::string> warnings(std::int64_t epoch_size = 0) const;

  /// In every step, on the calling thread, when the gradients are complete (all micro-batches,
  /// copies and ties added up) and before their norm: may read and change them. It is given the
  /// parameters hosted here in global name order, one of each; other copies get the same gradient.
  /// Copies and ties in other processes see their own call, so it has to be a function of what is
  /// the same there: name, value, gradient.
  std::function<void(std::span<Parameter* const>)> before_update;
  /// In the first WatchOptions::inspect_gradients steps, before `before_update`: the complete
  /// gradients of all processes, in each of them.
  std::function<void(const GradientInspection&)> on_gradients;
  std::function<void(const StepReport&)> on_step;  ///< after every step of fit()
  /// Between two passes of a step of fit(), and before each pass of a validation; before `stop`
  /// is asked.
  std::function<void()> on_pass;
  /// After every step, and on_step, with WatchOptions::records; in the first process alone.
  std::function<void(const StepRecord&)> on_record;
  std::function<void(const EpochReport&)> on_epoch;  ///< after every epoch of fit()
  /// After every validation of fit(), between on_step and on_record of the step before it.
  std::function<void(const ValidationReport&)> on_validation;
  /// When a save of fit() is durable or has failed: at the next boundary of steps.
  std::function<void(const SaveReport&)> on_save;

 private:
  struct State;
  class Saving;
  FitReport run(BatchSource& batches, const std::stop_token& stop, const Dataset* validation);

  std::unique_ptr<State> state_;
};

}  // namespace millrace
