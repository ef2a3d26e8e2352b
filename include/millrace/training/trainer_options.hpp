// Settings of a trainer and what it tells: plain structs, so that a program names what it changes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/file_system.hpp"
#include "millrace/training/learning_rate.hpp"
#include "millrace/training/loader.hpp"
#include "millrace/training/loss_scale.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/parameter_group.hpp"
#include "millrace/training/recompute.hpp"

namespace millrace {

/// What fit() does when a checkpoint cannot be saved.
enum class SaveErrors : std::uint8_t {
  Throw,     ///< throws SaveFailed, before the first step where the folder cannot be written
  Continue,  ///< reports the fault (Trainer::on_save) and trains on
};

/// Where fit() saves checkpoints, and when: after these steps, when it ends or is asked to stop,
/// and when a step fails while the state is whole: in several processes, when all of them live and
/// stand behind the same step.
struct SaveOptions {
  std::string folder = {};       ///< of all checkpoints of the training; empty: none are saved
  std::int64_t every_steps = 0;  ///< mini-batches, counted over all of the training; 0: none
  std::chrono::milliseconds every_time{0};  ///< since the last save, by the first process; 0: none
  int keep = 2;                             ///< the newest so many stay; at least 1
  std::int64_t keep_every = 0;              ///< and all whose step is a multiple of this; 0: none
  /// Written beside the state, for people: when, where, by whom. Only the first process' is used.
  std::map<std::string, std::string> run = {};
  SaveErrors errors = SaveErrors::Throw;
  /// One job saves in a folder at a time: during fit() and save() its first process locks it. A
  /// training that was resumed waits this long for the lock of a run that is ending; one that
  /// starts from nothing does not wait.
  std::chrono::milliseconds lock_wait{30'000};
  /// Training goes on while files are written, at most one checkpoint at a time. It needs a second
  /// copy of the state either way.
  bool background = true;
  /// Of several processes that save after a step that failed, without a word between them, each
  /// waits so long for the next file of another before it gives up.
  std::chrono::milliseconds patience{60'000};
  std::shared_ptr<FileSystem> files = {};  ///< null: the local file system
};

/// What became of a save. The same in all processes, but for the times.
struct SaveReport {
  std::int64_t step = 0;     ///< mini-batches run before it
  std::string folder;        ///< of the checkpoint, durable now; empty when there is a fault
  std::string fault;         ///< a sentence; SaveErrors says whether the training goes on
  std::string warning;       ///< older checkpoints could not be removed
  double pause_seconds = 0;  ///< for which steps waited
  double seconds = 0;        ///< from the copy until it was durable and that was known
  /// The last one, of the state before a step that failed: fit() throws behind it. What was wrong
  /// with it, of several processes, only the first knows in words.
  bool after_failure = false;
};

/// A checkpoint that cannot be loaded, and why, in a sentence.
struct DamagedCheckpoint {
  std::string folder;
  std::string fault;
};

/// Where a training goes on, and what is not as it was.
struct ResumeReport {
  std::string folder;                           ///< of the checkpoint
  std::vector<DamagedCheckpoint> damaged = {};  ///< newer ones that were passed over
  std::vector<std::string> changed = {};   ///< settings that decide bits: "clip_norm: 1, was none"
  std::vector<std::string> warnings = {};  ///< why bits may differ from here on
};

/// How a model is trained. Every field has a default that works.
struct TrainerOptions {
  // The pipeline that a trainer without a program generates. With a program the first five are left
  // out, or are what the program is: a trainer throws InvalidArgument for any other value.
  std::optional<std::string> schedule = {};  ///< a name of schedules(); none: 1f1b
  std::optional<int> ranks = {};             ///< p; none: 4
  std::optional<int> chunks = {};            ///< v, for chunked schedules
  std::optional<int> micro_batches = {};     ///< m, of one pass; none: 8
  std::optional<int> slices = {};            ///< q, for schedules that cut sequences
  std::vector<int> boundaries = {};          ///< cut of a model's layers into stages; empty: even
  Recompute recompute = {};             ///< layers that run again instead of keeping their stash
  std::string executor = "flow-graph";  ///< a name of executor_kinds()
  ExecutorOptions executor_options = {};

  // What a step does.
  /// K: the program runs so many times in a step, over m micro-batches each, and the gradients add
  /// up until one update follows. The bits are those of one pass of K m micro-batches, for
  /// schedules that accumulate in ascending order; the memory is that of m.
  int accumulate = 1;
  /// The order in which the micro-batches' gradients are added. `Tree` is the same for every cut
  /// and schedule, too, those that do not accumulate in ascending order included, and for every
  /// number of copies that share the micro-batches out; a stop inside an update waits for its end.
  AccumulateOrder accumulate_order = AccumulateOrder::Ascending;
  OptimizerOptions optimizer = {};
  /// Where a pipeline has copies (GridPosition): what the optimizer keeps of a stage, and master
  /// values, are spread over them; each copy moves its share of the weights and gives it to the
  /// others (ZeRO stage 1). The bits and the checkpoints are those without; a step that fails saves
  /// none.
  bool shard_optimizer = false;
  /// An optimizer of your own instead. Shared, because programs keep a handle to read it back.
  std::shared_ptr<const Optimizer> custom_optimizer = {};
  /// With total_updates 0, curves that need it begin again with every fit() and end with it; a loop
  /// of your own has to say their number.
  LearningRate learning_rate = {};
  /// Global names of parameters that stay as they are, `*` for any run of characters
  /// ("layers.0.*"); see TrainingState::freeze.
  std::vector<std::string> frozen = {};
  /// Parameters with settings of their own; see TrainingState::set. Of two that say the same
  /// setting of a parameter the last one decides, and both come after `frozen`.
  std::vector<ParameterGroup> parameters = {};
  /// Groups of parameters, by global name, that are one weight (tied embeddings, say): each starts
  /// with the value of the one named first, and each update sees the sum of the group's gradients,
  /// which accumulate apart and are added once, in f32, in the order of the layers. They are
  /// declared among the ties of the program's shape (StageTie) and added by its REDUCE_GRAD.
  std::vector<std::vector<std::string>> tied = {};
  std::optional<double> clip_norm = {};  ///< clip the norm over all stages to this
  /// The factor on the loss, taken out of the gradients again; none given: `loss_scale_for` the
  /// model's precision.
  std::optional<LossScaleOptions> loss_scale = {};
  /// Steps skipped in a row, because the gradient was not finite, that end the training; at least
  /// 1. Mini-batches without weight do not count.
  std::int64_t max_skipped = 25;
  std::uint64_t seed = 1;  ///< of initial weights, shuffling and dropout
  /// No wait inside a step lasts longer.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);

  // What fit() reads.
  std::int64_t batch_size = 128;
  std::int64_t epochs = 10;
  std::int64_t steps = 0;  ///< mini-batches in all; above 0 it replaces `epochs`
  LastBatch last_batch = LastBatch::Update;

  SaveOptions save = {};

  /// Makes a StepRecord of every step (Trainer::on_record). Needs the executor's timeline, and of
  /// several processes one message each per step to the first.
  bool records = false;
  /// Of so many steps, from the first that the trainer runs, the gradients are inspected layer by
  /// layer (Trainer::on_gradients).
  std::int64_t inspect_gradients = 0;
};

/// One step, as told to on_step.
struct StepReport {
  std::int64_t global_step = 0;  ///< updates done, this one included
  std::int64_t epoch = 0;        ///< from 0
  std::int64_t batch = 0;        ///< of the mini-batch inside its epoch, from 0
  std::int64_t samples = 0;      ///< rows of the first stage's inputs
  /// Of the samples of a Batch, padding included, where this process has data; loss.judged are
  /// those of them that count.
  std::int64_t positions = 0;
  LossSum loss;              ///< over the mini-batch; its mean is sum / weight
  double gradient_norm = 0;  ///< before clipping
  double clip_factor = 1;    ///< what the gradient was multiplied by
  double learning_rate = 0;
  double loss_scale = 1;  ///< that the step ran with
  /// Nothing was updated: the gradient was not finite, or the mini-batch has no weight.
  bool skipped = false;
  double seconds = 0;                         ///< wall time of the step, optimizer included
  std::vector<std::size_t> peak_stash_bytes;  ///< per rank, counted in this step: of any pass
  /// Likewise, of the sums that a tree holds beside the gradients; empty for the ascending order.
  std::vector<std::size_t> peak_sum_bytes;

  /// Whether all targets of the mini-batch weigh 0.
  [[nodiscard]] bool has_no_weight() const { return loss.weight == 0; }
  [[nodiscard]] double mean_loss() const { return loss.weight > 0 ? loss.sum / loss.weight : 0; }
};

/// One epoch, as told to on_epoch.
struct EpochReport {
  std::int64_t epoch = 0;  ///< from 0
  LossSum loss;            ///< over all its mini-batches, each with the weights before its update
  std::int64_t updates = 0;
  std::int64_t skipped = 0;
  std::int64_t without_weight = 0;  ///< of the skipped steps: see StepReport::has_no_weight
  std::int64_t samples = 0;
  std::int64_t positions = 0;  ///< as of a step
  double seconds = 0;          ///< wall time of its steps and of waiting for data

  [[nodiscard]] double mean_loss() const { return loss.weight > 0 ? loss.sum / loss.weight : 0; }
};

/// What fit() did.
struct FitReport {
  std::vector<EpochReport> epochs;
  std::int64_t samples = 0;
  double seconds = 0;
  bool stopped = false;  ///< it was asked to end before all steps had run

  /// Steps that did not update.
  [[nodiscard]] std::int64_t skipped() const { return sum(&EpochReport::skipped); }
  /// Of those: steps whose targets all weighed 0.
  [[nodiscard]] std::int64_t without_weight() const { return sum(&EpochReport::without_weight); }

  [[nodiscard]] double samples_per_second() const {
    return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
  }

 private:
  [[nodiscard]] std::int64_t sum(std::int64_t EpochReport::*member) const {
    std::int64_t total = 0;
    for (const EpochReport& epoch : epochs) total += epoch.*member;
    return total;
  }
};

/// What evaluate() found.
struct Score {
  LossSum loss;
  std::int64_t samples = 0;  ///< rows of the first stage's inputs

  [[nodiscard]] double mean_loss() const { return loss.weight > 0 ? loss.sum / loss.weight : 0; }
  /// Share of right predictions among those that the loss judged, one per target; of a loss that
  /// does not count them, among its weight.
  [[nodiscard]] double accuracy() const {
    const double of = loss.judged > 0 ? static_cast<double>(loss.judged) : loss.weight;
    return of > 0 ? static_cast<double>(loss.correct) / of : 0;
  }
};

}  // namespace millrace
