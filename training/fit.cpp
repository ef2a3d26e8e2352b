// The loop of fit(): from where its mini-batches begin to the end of the options' epochs or steps.
#include <chrono>
#include <string>

#include "millrace/core/error.hpp"
#include "training/agreement.hpp"
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
      : options_(options), batches_(batches), curve_(options.learning_rate) {
    const std::int64_t total =
        options.steps > 0 ? options.steps : options.epochs * batches.batches_per_epoch();
    if (!curve_.needs_total()) return;
    require(total > 0,
            "a learning rate that falls needs to know its end: give total_updates, steps, or "
            "mini-batches that tell batches_per_epoch()");
    curve_.total_updates = total;
    rates_.start = counters.fit_global_step;
  }

  [[nodiscard]] const Rates& rates() const { return rates_; }

  [[nodiscard]] bool done(const TrainingCounters& counters) const {
    if (options_.steps > 0)
      return counters.mini_batches - counters.fit_mini_batches >= options_.steps;
    return batches_.position().epoch >= options_.epochs;
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
    ++(step.skipped ? epoch.skipped : epoch.updates);
    epoch.seconds = seconds_since(start_);
  }

  [[nodiscard]] FitReport finish() {
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

}  // namespace

LoaderOptions Trainer::loader_options() const {
  LoaderOptions loading;
  loading.batch_size = options().batch_size;
  loading.micro_batches = state_->shape.micro_batches;
  loading.slices = state_->shape.slices;
  loading.seed = state().counters().seed;
  loading.last_batch = options().last_batch;
  return loading;
}

FitReport Trainer::fit(const Dataset& data, const std::stop_token& stop) {
  agree_on_data(state_->group, data, options().batch_size, options());
  Loader loader(data, loader_options());
  return fit(loader, stop);
}

FitReport Trainer::fit(BatchSource& batches, const std::stop_token& stop) {
  TrainingState& store = state_->store;
  state_->count([&](TrainingCounters& counters) {
    counters.position = batches.position();
    if (counters.position != DataPosition()) return;
    counters.fit_global_step = counters.global_step;
    counters.fit_mini_batches = counters.mini_batches;
  });
  agree_on_place(state_->group, store.counters(), options(), batches);
  Fit fit(options(), store.counters(), batches);
  while (!fit.done(store.counters()) && !stop.stop_requested()) {
    EpochReport& epoch = fit.epoch();
    const StepReport report = state_->step(batches.next(), fit.rates());
    state_->count([&](TrainingCounters& counters) { counters.position = batches.position(); });
    fit.add(epoch, report);
    if (on_step) on_step(report);
    state_->require_progress();
    if (batches.position().epoch != epoch.epoch || fit.done(store.counters()))
      if (on_epoch) on_epoch(epoch);
  }
  return fit.finish();
}

}  // namespace millrace
