// TrainerOptions: how a model is trained, in six groups. PipelineOptions: the schedule and the
// partition that a trainer makes itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/parameters.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/learning_rate.hpp"
#include "millrace/training/loader.hpp"
#include "millrace/training/loss_scale.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/reports.hpp"

namespace millrace {

class FileSystem;

enum class RecomputeKind : std::uint8_t { None, All, Stages, Every, Selective, Auto };

/// A choice of layers. Consecutive chosen layers of a stage are a segment: what it is given is
/// kept, and its layers run again, dropout and all, when the backward comes to them (Chen et al.,
/// "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174). The last segment of a stage
/// runs again in the recompute action of the plan, each other one inside I or B.
/// - All: every layer, a segment a stage.
/// - Stages: every layer of some stages, a segment a stage: what `search` chooses.
/// - Every: every layer, in segments of `every` layers, counted from the model's first.
/// - Selective: the named layers: numbers ("3"), ranges ("5-7") and kinds ("linear").
/// - Auto: few layers, so that no rank is predicted to stash more than `bytes`: for the fullest
/// rank
///   always the shortest run of its layers that makes it fit, or the one that frees most per layer;
///   those that proved needless in the end are given back. Not always the fewest that there are.
/// Thread-safety: a value.
struct Recompute {
  RecomputeKind kind = RecomputeKind::None;
  int every = 0;
  std::vector<std::string> layers = {};
  std::size_t bytes = 0;
  std::string stages = {};  ///< "stages:0,2-4", as parse_recompute_stages reads it

  friend bool operator==(const Recompute&, const Recompute&) = default;
};

/// Reads "none", "all", "stages:0,2-4" (read as such when the number of stages is known),
/// "every-4", "selective:2,5-7,layer_norm" or "auto:64M" (bytes, or with K, M, G: times 1,024, its
/// square, its cube). Throws InvalidArgument that says what is allowed.
[[nodiscard]] Recompute parse_recompute(std::string_view text);

/// In that form.
[[nodiscard]] std::string to_string(const Recompute& recompute);

/// By layer of the model: the number of its segment in its stage, or StageModule::kKept. What
/// StageModule::recompute_in takes, stage after stage. `micro_batch` is what Auto predicts for: the
/// largest unit. The stages of a program that recomputes by itself are chosen whole. Throws
/// InvalidArgument for such a program with any choice but None, for a stage, layer or kind that the
/// model has not, and when Auto cannot fit: it names the least that it reached. Cost: of Auto,
/// O(layers^2) predictions of all ranks' stashes a run, each O(actions).
[[nodiscard]] std::vector<int> recompute_segments(const Recompute& recompute,
                                                  const ModelSpec& model,
                                                  std::span<const int> boundaries,
                                                  const Program& program,
                                                  const UnitSize& micro_batch);

/// A stage's part of them.
[[nodiscard]] std::vector<int> segments_of_stage(std::span<const int> segments,
                                                 std::span<const int> boundaries,
                                                 std::size_t stage);

/// By stage: whether any of its layers is in a segment.
[[nodiscard]] std::vector<bool> recomputed_stages(std::span<const int> segments,
                                                  std::span<const int> boundaries);

/// The pipeline of a trainer that generates its schedule.
struct PipelineOptions {
  std::string schedule = "1f1b";     ///< a name of schedules()
  ScheduleOptions shape = {};        ///< ranks, micro-batches of one pass, chunks, slices, ...
  std::vector<int> boundaries = {};  ///< as in Plan; empty: as even as possible
};

/// How a step computes an update. All of it decides bits.
struct StepOptions {
  /// K: the program runs K times in a step, over m micro-batches each. The gradients add up, then
  /// one update follows. With ascending accumulation the bits are those of one pass of K m
  /// micro-batches; the memory is that of m.
  int accumulate = 1;
  /// The order in which the micro-batches' gradients are added. `Tree` gives the same bits for
  /// every partition, schedule and number of data-parallel replicas. With it, fit() stops between
  /// updates only.
  AccumulateOrder accumulate_order = AccumulateOrder::Ascending;
  OptimizerOptions optimizer = {};
  /// A custom optimizer instead. Shared, so that the caller can read its state.
  std::shared_ptr<const Optimizer> custom_optimizer = {};
  /// Shards optimizer state and master weights across data-parallel replicas (ZeRO stage 1). Bits
  /// and checkpoints do not change; a failed step saves none.
  bool shard_optimizer = false;
  /// Curves that need total_updates and have none begin and end with each fit(). A custom loop must
  /// set it.
  LearningRate learning_rate = {};
  /// Parameters with other settings; see TrainingState::set. The last group with a setting decides.
  std::vector<ParameterGroup> parameters = {};
  /// Groups of parameters, by global name, that are one weight (tied embeddings, say). They start
  /// with the value of the first name. Each update uses the sum of the group's gradients, added
  /// once, in f32, in the order of the layers (StageTie, REDUCE_GRAD).
  std::vector<std::vector<std::string>> tied = {};
  /// Of the sinks (Shape::sinks), ascending: what is minimized is the sum over them of weight x
  /// mean loss. Empty: 1 for each. With several sinks, a step is not stopped between its passes.
  std::vector<double> loss_weights = {};
  std::optional<double> clip_norm = {};  ///< largest gradient norm over all stages
  /// Unset: `loss_scale_for` the model's precision.
  std::optional<LossScaleOptions> loss_scale = {};
  /// Consecutive steps with a gradient that is not finite that end the training; at least 1.
  /// Mini-batches without weight do not count.
  std::int64_t max_skipped = 25;
  std::uint64_t seed = 1;  ///< of initial weights, shuffling and dropout
};

/// How the pipeline runs. No bit depends on it. A trainer of TrainerParts uses the deadline alone:
/// rank_parts has used the rest.
struct RunOptions {
  std::string executor = "flow-graph";  ///< a name of executor_kinds(), for all ranks in a process
  ExecutorOptions executor_options = {};
  Recompute recompute = {};  ///< layers that run again instead of keeping their activations
  std::chrono::milliseconds deadline = std::chrono::minutes(10);  ///< of each wait inside a step
};

/// The data that fit() reads.
struct FitOptions {
  std::int64_t batch_size = 128;  ///< samples of a mini-batch, over all data-parallel replicas
  std::int64_t epochs = 10;
  std::optional<std::int64_t> steps = {};  ///< mini-batches in all, instead of `epochs`
  LastBatch last_batch = LastBatch::Update;
};

/// What fit() does when a checkpoint cannot be saved.
enum class SaveErrors : std::uint8_t {
  Throw,     ///< throws SaveFailed, before the first step where the folder cannot be written
  Continue,  ///< reports the fault (Trainer::on_save) and trains on
};

/// Where and when fit() saves checkpoints: after these steps, at its end, when it is asked to stop,
/// and after a failed step if all processes live and have completed the same steps.
struct SaveOptions {
  std::string folder = {};  ///< of all checkpoints of the training; empty: none are saved
  std::optional<std::int64_t> every_steps = {};  ///< mini-batches, counted over all the training
  std::optional<std::chrono::milliseconds> every_time = {};  ///< since the last save
  int keep = 2;  ///< number of newest checkpoints that stay; at least 1
  std::optional<std::int64_t> keep_every = {};  ///< those of multiples of this step stay, too
  /// Written next to the state, for people: when, where, by whom. Only the first process's is used.
  std::map<std::string, std::string> run = {};
  SaveErrors errors = SaveErrors::Throw;
  /// One job saves in a folder at a time: during fit() and save() its first process locks it. A
  /// resumed training waits this long for the lock of a run that is ending; a new one does not
  /// wait.
  std::chrono::milliseconds lock_wait{30'000};
  /// Training continues while files are written, at most one checkpoint at a time. It needs a
  /// second copy of the state either way.
  bool background = true;
  /// Processes that save after a failed step do so without messages. Each waits this long for the
  /// next file of another.
  std::chrono::milliseconds patience{60'000};
  std::shared_ptr<FileSystem> files = {};  ///< null: the local file system
};

/// What a trainer records of its steps. No bit depends on it.
struct WatchOptions {
  /// Makes a StepRecord of every step (Trainer::on_record). Needs the executor's timeline; each
  /// process sends the first one a message per step.
  bool records = false;
  /// Steps, from the first that the trainer runs, whose gradients are inspected layer by layer
  /// (Trainer::on_gradients).
  std::int64_t inspect_gradients = 0;
};

/// How a model is trained. Every field has a default that works.
/// Thread-safety: a value.
struct TrainerOptions {
  StepOptions step = {};
  RunOptions run = {};
  FitOptions fit = {};
  SaveOptions save = {};
  WatchOptions watch = {};
  ValidationOptions validation = {};
};

}  // namespace millrace
