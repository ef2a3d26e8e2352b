// The loop of fit(): from where its mini-batches begin to the end of the options' epochs or steps.
#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/step_times.hpp"
#include "training/agreement.hpp"
#include "training/lone_values.hpp"
#include "training/saving.hpp"
#include "training/trainer_state.hpp"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One call of fit().
class Fit {
 public:
  Fit(const TrainerOptions& options, const TrainingCounters& counters, BatchSource& batches)
      : options_(options), batches_(batches), curve_(options.step.learning_rate) {
    const std::int64_t total =
        options.fit.steps.value_or(options.fit.epochs * batches.batches_per_epoch());
    if (!curve_.needs_total()) return;
    require(total > 0,
            "a learning rate that falls needs to know its end: give total_updates, steps, or "
            "mini-batches that tell batches_per_epoch()");
    curve_.total_updates = total;
    rates_.start = counters.fit_global_step;
  }

  [[nodiscard]] const Rates& rates() const { return rates_; }

  [[nodiscard]] bool done(const TrainingCounters& counters) const {
    if (!early_stop(options_.validation, counters.validation).empty()) return true;
    if (options_.fit.steps)
      return counters.mini_batches - counters.fit_mini_batches >= *options_.fit.steps;
    return batches_.position().epoch >= options_.fit.epochs;
  }

  /// The epoch that the coming mini-batch belongs to.
  EpochReport& epoch() {
    const std::int64_t number = batches_.position().epoch;
    if (report_.epochs.empty() || report_.epochs.back().epoch != number) {
      report_.epochs.emplace_back().epoch = number;
      start_ = Clock::now();
    }
    return report_.epochs.back();
  }

  void add(EpochReport& epoch, const StepReport& step) const {
    epoch.loss += step.loss;
    epoch.samples += step.samples;
    epoch.positions += step.positions;
    ++(step.skipped ? epoch.skipped : epoch.updates);
    epoch.without_weight += step.has_no_weight() ? 1 : 0;
    epoch.seconds = seconds_since(start_);
  }

  /// Its time is none of the epoch's.
  void add(const ValidationReport& validation) {
    report_.validations.push_back(validation);
    start_ += std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(validation.seconds));
  }

  /// The validation of the last step may be what was stopped.
  void note_stop() { report_.stopped = true; }

  [[nodiscard]] FitReport finish(const TrainingCounters& counters) {
    report_.stopped = report_.stopped || !done(counters);
    report_.early_stop = early_stop(options_.validation, counters.validation);
    for (const EpochReport& epoch : report_.epochs) {
      report_.samples += epoch.samples;
      report_.seconds += epoch.seconds;
    }
    return std::move(report_);
  }

 private:
  const TrainerOptions& options_;
  BatchSource& batches_;
  LearningRate curve_;
  Rates rates_{&curve_};
  FitReport report_;
  Clock::time_point start_;
};

/// What a process wants between two steps.
struct Requests {
  bool stop = false;
  bool save = false;
};

/// Whether any process can want something between two steps: the same in all of them, although some
/// may have no way to stop. (All of them save, or none: the trainer has compared that.)
bool any_can_want(const std::stop_token& stop, const TrainerOptions& options, ProcessGroup& group) {
  double can = stop.stop_possible() || !options.save.folder.empty() ? 1 : 0;
  group.sum(std::span(&can, 1), Label::Checkpoint);
  return can > 0;
}

/// What any process wants, all of them do. It also makes sure that no process begins a step before
/// all have ended the last one: should that step fail, all stand where it began.
Requests agreed(Requests mine, ProcessGroup& group) {
  std::array<double, 2> wanted = {mine.stop ? 1.0 : 0.0, mine.save ? 1.0 : 0.0};
  group.sum(wanted, Label::Checkpoint);
  return {wanted[0] > 0, wanted[1] > 0};
}

}  // namespace

/// Finds out which data it is, where it matters. Throws Mismatch when a checkpoint was trained on
/// other data.
void Trainer::State::know_data(const Dataset& dataset) {
  if (options.save.folder.empty() && expected_data.empty()) return;
  data_digest.clear();
  for (const std::string& digest : group.gather(contents_digest(dataset), Label::Data))
    if (data_digest.empty()) data_digest = digest;
  if (goes_on && !expected_data.empty() && data_digest != expected_data)
    throw Mismatch("data differs: the checkpoint was trained on contents " + expected_data +
                   ", this is " + data_digest);
}

/// The time that it is waited for is its own.
Batch& Trainer::State::next_batch(BatchSource& batches) {
  const Timed timed(times.data);
  return batches.next();
}

LoaderOptions Trainer::loader_options() const {
  LoaderOptions loading;
  loading.batch_size = options().fit.batch_size;
  loading.micro_batches = state_->micro_batches();
  loading.slices = state_->shape.slices;
  loading.seed = state().counters().seed;
  loading.last_batch = options().fit.last_batch;
  return loading;
}

FitReport Trainer::fit(const Dataset& data,
                       const std::stop_token& stop,
                       const Dataset* validation) {
  agree_on_data(state_->group, data, options().fit.batch_size);
  state_->know_data(data);
  refuse_lone_values(state_->parts.norm_values,
                     std::min(options().fit.batch_size, data.epoch_size()),
                     state_->micro_batches());
  Loader loader(data, loader_options());
  if (std::exchange(state_->goes_on, false)) loader.seek(state().counters().position);
  return run(loader, stop, validation);
}

FitReport Trainer::fit(BatchSource& batches,
                       const std::stop_token& stop,
                       const Dataset* validation) {
  state_->data_digest.clear();  // nobody knows what comes
  return run(batches, stop, validation);
}

/// A source at its very beginning begins a fit, another goes on with the current one.
void Trainer::State::begin_fit(const BatchSource& batches) {
  const TrainingCounters& before = store.counters();
  if (before.partial.micro_batches > 0 && batches.position() != before.position) drop_partial();
  count([&](TrainingCounters& counters) {
    counters.position = batches.position();
    if (counters.position != DataPosition()) return;
    counters.fit_global_step = counters.global_step;
    counters.fit_mini_batches = counters.mini_batches;
    counters.validation = {};
  });
}

FitReport Trainer::run(BatchSource& batches,
                       const std::stop_token& stop,
                       const Dataset* validation) {
  TrainingState& store = state_->store;
  state_->begin_fit(batches);
  agree_on_place(state_->group, store.counters(), batches);
  state_->begin_validation(validation);
  Fit fit(options(), store.counters(), batches);
  state_->begin_records();
  Saving saving(*state_, on_save);
  const bool can_want = any_can_want(stop, options(), state_->group);
  const auto agree = [&]() -> Requests {
    if (!can_want) return {};
    return agreed({stop.stop_requested(), saving.is_time()}, state_->group);
  };
  const State::Pause stops = [&] {
    if (on_pass) on_pass();
    return agree().stop;
  };
  const State::Pause pause = [&] {
    if (on_pass) on_pass();
    return state_->may_pause() && agree().stop;
  };
  bool has_best = false;  // that is not saved yet
  const auto validate = [&](std::int64_t epoch) {
    const DataPosition next = batches.position();
    const std::int64_t done = store.counters().mini_batches;
    if (validation == nullptr || done == store.counters().validation.step) return;
    if (!is_validation_due(options().validation, done, next.epoch, next.batch)) return;
    const auto report = state_->validate(*validation, epoch, stops);
    if (!report) return fit.note_stop();
    has_best = report->is_best;
    fit.add(*report);
    if (on_validation) on_validation(*report);
  };
  const auto step = [&] {
    EpochReport& epoch = fit.epoch();
    saving.note_boundary();
    const std::optional<StepReport> report =
        state_->step(state_->next_batch(batches), fit.rates(), pause);
    if (!report) {
      batches.seek(store.counters().position);
      return false;
    }
    state_->count([&](TrainingCounters& counters) { counters.position = batches.position(); });
    saving.note_boundary();
    fit.add(epoch, *report);
    if (on_step) on_step(*report);
    validate(epoch.epoch);
    state_->record(*report, on_record);
    state_->require_progress();
    if (batches.position().epoch != epoch.epoch || fit.done(store.counters()))
      if (on_epoch) on_epoch(epoch);
    return true;
  };
  saving.guard([&] {
    // A checkpoint may lie between a step and its validation.
    if (store.counters().partial.micro_batches == 0) validate(batches.position().epoch);
    if (std::exchange(has_best, false) && !state_->is_resumed_here()) saving.after_step(true);
    for (Requests requests = agree(); !fit.done(store.counters()) && !requests.stop;) {
      if (!step()) break;
      requests = agree();
      const Timed timed(state_->times.save);
      saving.after_step(std::exchange(has_best, false) || requests.save);
    }
    saving.finish();
  });
  return fit.finish(store.counters());
}

}  // namespace millrace
