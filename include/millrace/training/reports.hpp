// What fit(), step(), evaluate(), save() and resume() report, and what follows from a validation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/stages/stage.hpp"

namespace millrace {

/// One step, as told to on_step.
struct StepReport {
  std::int64_t global_step = 0;  ///< updates done, this one included
  std::int64_t epoch = 0;        ///< from 0
  std::int64_t batch = 0;        ///< of the mini-batch inside its epoch, from 0
  std::int64_t samples = 0;      ///< rows of the first stage's inputs
  /// Of the samples of a Batch, padding included, where this process has data; loss.evaluated are
  /// those of them that count.
  std::int64_t positions = 0;
  LossSum loss;  ///< over the mini-batch, of the last stage; its mean is sum / weight
  std::vector<LossSum> other_losses = {};  ///< the same of the sinks before it (Shape::sinks)
  double gradient_norm = 0;                ///< before clipping
  double clip_factor = 1;                  ///< what the gradient was multiplied by
  double learning_rate = 0;
  double loss_scale = 1;  ///< that the step ran with
  /// Nothing was updated: the gradient was not finite, or the mini-batch has no weight.
  bool skipped = false;
  double seconds = 0;                         ///< wall time of the step, optimizer included
  std::vector<std::size_t> peak_stash_bytes;  ///< per rank, counted in this step: of any pass
  /// Likewise, of the sums that a tree holds beside the gradients; empty for the ascending order.
  std::vector<std::size_t> peak_sum_bytes;

  /// Whether all targets of the mini-batch weigh 0.
  [[nodiscard]] bool has_no_weight() const {
    const auto weighs = [](const LossSum& other) { return other.weight != 0; };
    return !weighs(loss) && std::ranges::none_of(other_losses, weighs);
  }
  [[nodiscard]] double mean_loss() const { return loss.mean(); }
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

  [[nodiscard]] double mean_loss() const { return loss.mean(); }
};

/// What evaluate() found.
struct Score {
  LossSum loss;
  std::int64_t samples = 0;  ///< rows of the first stage's inputs

  void add(const LossSum& more, std::int64_t more_samples) {
    loss += more;
    samples += more_samples;
  }

  [[nodiscard]] double mean_loss() const { return loss.mean(); }
  /// Right predictions divided by the targets that the loss evaluated. A loss that does not count
  /// its targets is divided by its weight.
  [[nodiscard]] double accuracy() const {
    const double of = loss.evaluated > 0 ? static_cast<double>(loss.evaluated) : loss.weight;
    return of > 0 ? static_cast<double>(loss.correct) / of : 0;
  }
};

/// What validations are compared by.
enum class ValidationMetric : std::uint8_t { Loss, Accuracy };

/// "loss", "accuracy".
[[nodiscard]] std::string_view name_of(ValidationMetric metric);

/// When fit() evaluates its validation data, and what follows. Training has the same bits with and
/// without it.
struct ValidationOptions {
  std::optional<std::int64_t> every_steps = {};    ///< mini-batches, counted over all the training
  std::int64_t every_epochs = 1;                   ///< where every_steps is unset
  std::optional<ValidationMetric> keep_best = {};  ///< keeps the best checkpoint by this metric
  std::int64_t early_stopping = 0;  ///< validations without improvement that end fit(); 0: off
  double min_delta = 0;             ///< least improvement, for early_stopping

  /// What validations are compared by: the metric of keep_best, else the loss.
  [[nodiscard]] ValidationMetric metric() const {
    return keep_best.value_or(ValidationMetric::Loss);
  }
};

/// The validations of a training so far. Thread-safety: a value.
struct ValidationRecord {
  std::int64_t step = 0;  ///< mini-batches before the last validation; 0: there was none
  ValidationMetric metric = ValidationMetric::Loss;
  std::int64_t best_step = 0;            ///< of the best checkpoint; 0: there is none
  double best = 0;                       ///< its metric
  std::int64_t reference_step = 0;       ///< of the last improvement; 0: there was none
  double reference = 0;                  ///< its metric
  std::int64_t without_improvement = 0;  ///< validations since then
  std::string data = {};                 ///< contents_digest of the validation data

  friend bool operator==(const ValidationRecord&, const ValidationRecord&) = default;
};

/// Whether a validation is due after `step` mini-batches, where the next one is `batch` of `epoch`.
[[nodiscard]] bool is_validation_due(const ValidationOptions& options,
                                     std::int64_t step,
                                     std::int64_t epoch,
                                     std::int64_t batch);

/// The record after a validation at `step`. A value that is not finite is never better.
[[nodiscard]] ValidationRecord next_record(ValidationRecord record,
                                           const ValidationOptions& options,
                                           std::int64_t step,
                                           const Score& score);

/// Why the training ends by early_stopping; empty: it continues.
[[nodiscard]] std::string early_stop(const ValidationOptions& options,
                                     const ValidationRecord& record);

/// One validation, which on_validation receives.
struct ValidationReport {
  std::int64_t step = 0;   ///< mini-batches before it
  std::int64_t epoch = 0;  ///< of the last of them, from 0
  Score score;
  double seconds = 0;
  bool is_best = false;  ///< a checkpoint will be kept: see ValidationOptions::keep_best
  bool is_last = false;  ///< early_stopping ends the training
  std::int64_t without_improvement = 0;  ///< as in ValidationRecord
};

/// What fit() did.
struct FitReport {
  std::vector<EpochReport> epochs;
  std::int64_t samples = 0;
  double seconds = 0;    ///< without validations
  bool stopped = false;  ///< it was asked to end before all steps had run
  std::vector<ValidationReport> validations = {};
  std::string early_stop = {};  ///< why it ended before all steps had run; empty: it did not

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
  /// Newer ones than the best one, from which it continues: the first save in their folder renames
  /// them. The first process knows.
  std::vector<std::string> superseded = {};
  std::vector<std::string> changed = {};   ///< settings that decide bits: "clip_norm: 1, was none"
  std::vector<std::string> warnings = {};  ///< why bits may differ from here on
};

}  // namespace millrace
