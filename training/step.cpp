// The step: what it means, from the mini-batch to the update.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/step_times.hpp"
#include "training/lone_values.hpp"
#include "training/pass_data.hpp"
#include "training/trainer_state.hpp"
#include "training/update.hpp"
#include "training/watch/inspection.hpp"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The losses of a step, which are added one by one in the order of the mini-batch's units, so that
/// their sum depends on neither passes nor copies.
class StepLosses {
 public:
  StepLosses(int copies, int passes)
      : copies_(static_cast<std::size_t>(copies)), passes_(static_cast<std::size_t>(passes)) {}

  /// Of a pass of all copies, one behind the other.
  void add(const std::vector<LossSum>& units, int pass) {
    const std::size_t of_pass = units.size() / copies_;
    units_.resize(units.size() * passes_);
    for (std::size_t copy = 0; copy < copies_; ++copy)
      for (std::size_t unit = 0; unit < of_pass; ++unit)
        units_[(copy * passes_ + static_cast<std::size_t>(pass)) * of_pass + unit] =
            units[copy * of_pass + unit];
  }

  void add_to(LossSum& sum) const {
    for (const LossSum& unit : units_) sum += unit;
  }

 private:
  std::size_t copies_, passes_;
  std::vector<LossSum> units_;
};

void keep_larger(std::vector<std::size_t>& peaks, const std::vector<std::size_t>& of_pass) {
  peaks.resize(of_pass.size());
  for (std::size_t i = 0; i < peaks.size(); ++i) peaks[i] = std::max(peaks[i], of_pass[i]);
}

void require_weight(double declared, const LossSum& loss) {
  require(std::abs(loss.weight - declared) <= 1e-9 * declared, [&] {
    return "the step was scaled for a total weight of " + std::to_string(declared) +
           ", but its losses weighed " + std::to_string(loss.weight) +
           "; a stage with a loss says beforehand what it weighs (StageBody::loss_weight), or the"
           " call of step does";
  });
}

/// What of a pass needs no order.
void add(StepReport& report, const StepResult& pass) {
  report.samples += pass.samples;
  keep_larger(report.peak_stash_bytes, pass.peak_stash_bytes);
  keep_larger(report.peak_sum_bytes, pass.peak_sum_bytes);
}

}  // namespace

/// What the losses of this mini-batch will weigh in all, by sink.
std::vector<double> Trainer::State::weights_of(Batch& batch) const {
  const auto targets_of = [&](std::size_t sink, const Unit& unit) {
    return sink + 1 == sinks.size() ? batch.targets(unit)
                                    : batch.targets_of(unit, shape.sinks[sink]);
  };
  const auto weight_of = [&](std::size_t number) {
    const StageBody* const sink = sinks[number];
    const auto samples = static_cast<double>(batch.samples());
    if (sink == nullptr) return samples;
    double weight = 0;
    for (int i = 0; i < batch.micro_batches(); ++i)
      for (int slice = 0; slice < batch.slices(); ++slice) {
        const auto of_unit = sink->loss_weight(targets_of(number, {MicroBatch{i}, Slice{slice}}));
        if (!of_unit) return samples;
        weight += *of_unit;
      }
    return weight;
  };
  std::vector<double> weights(sinks.size());
  for (std::size_t sink = 0; sink < sinks.size(); ++sink) weights[sink] = weight_of(sink);
  return weights;
}

/// Factors on the gradients of the losses, by sink.
std::vector<double> Trainer::State::loss_scales(double scale,
                                                std::span<const double> weights) const {
  std::vector<double> scales(weights.begin(), weights.end());
  for (std::size_t sink = 0; sink < scales.size(); ++sink) {
    const auto& factors = options.step.loss_weights;
    const double factor = factors.empty() ? 1 : factors[sink];
    // Of a mini-batch without weight nothing is trained; every process learns so with the losses.
    scales[sink] = weights[sink] > 0 ? scale * factor / weights[sink] : 0;
  }
  return scales;
}

/// One run of the program, what it found known to every member.
StepResult Trainer::State::run_pass(StepData& data,
                                    const StepSettings& settings,
                                    std::vector<double>& declared) {
  const Timed timed(times.pass);
  PassData of_pass(data,
                   MicroBatch{parts.seat.copy() * micro_batches_of_copy() +
                              settings.in_step(MicroBatch{0}, shape).value});
  StepResult result = parts.executor->run(of_pass, settings);
  if (watch) watch->add_pass();
  agree(result, declared, parts.seat.grid().data(), settings.pass + 1 == settings.passes);
  return result;
}

/// The pipeline's part of a step: gradients accumulated over all passes, loss and peaks known.
/// False when it was paused between two of them, what was added up until then in the state.
bool Trainer::State::run(StepReport& report,
                         StepData& data,
                         std::vector<double> weights,
                         const Pause& pause) {
  StepSettings settings;
  settings.seed = store.counters().seed;
  settings.step = static_cast<std::uint64_t>(store.counters().mini_batches);
  report.loss_scale = store.counters().loss_scale.value;
  settings.loss_scales = loss_scales(report.loss_scale, weights);
  settings.loss_scale = settings.loss_scales.back();
  settings.deadline = options.run.deadline;
  settings.passes = options.step.accumulate;
  settings.order = options.step.accumulate_order;
  take_partial(report, settings);
  count([](TrainingCounters& counters) { ++counters.mini_batches; });
  group.begin_step(settings.step);
  const StepLosses of_sink(parts.seat.grid().data(), settings.passes);
  std::vector<StepLosses> losses(sinks.size(), of_sink);
  StepData& batch = watched(data, micro_batches());
  while (true) {
    const StepResult pass = run_pass(batch, settings, weights);
    add(report, pass);
    losses.back().add(pass.unit_losses, settings.pass);
    for (std::size_t sink = 0; sink < pass.other_losses.size(); ++sink)
      losses[sink].add(pass.other_losses[sink], settings.pass);
    if (++settings.pass == settings.passes) break;
    if (!pause || !pause()) continue;
    losses.back().add_to(report.loss);
    keep_partial(report, settings);
    return false;
  }
  losses.back().add_to(report.loss);
  require_weight(weights.back(), report.loss);
  report.other_losses.resize(losses.size() - 1);
  for (std::size_t sink = 0; sink < report.other_losses.size(); ++sink) {
    losses[sink].add_to(report.other_losses[sink]);
    require_weight(weights[sink], report.other_losses[sink]);
  }
  return true;
}

/// Throws unless a step can go on with the unfinished update, whose sums then stay.
void Trainer::State::check_partial() const {
  const PartialUpdate& begun = store.counters().partial;
  require(begun.micro_batches % shape.micro_batches == 0 && begun.micro_batches < micro_batches(),
          [&] {
            return "the unfinished update ends behind " + std::to_string(begun.micro_batches) +
                   " micro-batches, where none of " + std::to_string(options.step.accumulate) +
                   " passes of " + std::to_string(shape.micro_batches) + " begins";
          });
}

/// The step goes on behind the passes of an unfinished update, if there is one.
void Trainer::State::take_partial(StepReport& report, StepSettings& settings) {
  const PartialUpdate begun = store.counters().partial;
  settings.pass = static_cast<int>(begun.micro_batches / shape.micro_batches);
  report.loss = begun.loss;
  report.samples = begun.samples;
  count([](TrainingCounters& counters) { counters.partial = {}; });
}

/// The mini-batch is not run: its number names the random numbers of what is left of it.
void Trainer::State::keep_partial(const StepReport& report, const StepSettings& settings) {
  count([&](TrainingCounters& counters) {
    --counters.mini_batches;
    counters.partial = {.micro_batches = settings.in_step(MicroBatch{0}, shape).value,
                        .copies = shape.replicas(),
                        .samples = report.samples,
                        .loss = report.loss};
  });
}

/// Drops the sums of an unfinished update.
void Trainer::State::drop_partial() {
  zero_gradients(store);
  count([](TrainingCounters& counters) { counters.partial = {}; });
}

/// Layer by layer, in the first steps, where that is asked for.
void Trainer::State::inspect(double scale) {
  if (inspections == options.watch.inspect_gradients) return;
  ++inspections;
  const GradientInspection found = inspected(store, group, scale);
  if (on_gradients != nullptr && *on_gradients) (*on_gradients)(found);
}

/// The user's look at the gradients, one norm, one verdict, one clip factor, one
/// update of every stage.
void Trainer::State::update(StepReport& report) {
  if (shards) shards->begin_step(static_cast<std::uint64_t>(store.counters().mini_batches));
  if (shards && (gradients_wanted || inspections < options.watch.inspect_gradients))
    shards->share_gradients();
  inspect(report.loss_scale);
  const Timed timed(times.update);
  double scale = report.loss_scale;
  if (before_update != nullptr && *before_update) {
    if (scale != 1) unscale_gradients(store, std::exchange(scale, 1));
    visit_gradients(store, *before_update);
  }
  const GradientNorm norm = norm_of(store,
                                    *parts.executor,
                                    group,
                                    options.step.clip_norm,
                                    scale,
                                    times.optimizer,
                                    optimizer_shards());
  report.gradient_norm = norm.norm;
  report.clip_factor = norm.factor;
  report.skipped = norm.overflow;
  count([&](TrainingCounters& counters) {
    counters.loss_scale = next_scale(counters.loss_scale, !norm.overflow, loss_scale);
  });
  if (norm.overflow) {
    count([](TrainingCounters& counters) { ++counters.skipped_in_a_row; });
    zero_gradients(store);
    return;
  }
  UpdateSettings settings;
  settings.number = store.counters().global_step + 1;
  settings.learning_rate = report.learning_rate;
  settings.gradient_factor = norm.factor / scale;
  is_updating = true;
  for (const HostedStage& hosted : parts.stages) hosted.body->update_statistics();
  millrace::update(store,
                   *parts.executor,
                   *optimizer,
                   settings,
                   times.optimizer,
                   parts.seat,
                   optimizer_shards());
  is_updating = false;
  count([](TrainingCounters& counters) {
    ++counters.global_step;
    counters.skipped_in_a_row = 0;
  });
}

/// A mini-batch whose targets all weigh 0 has no gradient: nothing else is wrong with it.
void Trainer::State::skip(StepReport& report) {
  report.skipped = true;
  zero_gradients(store);
}

std::optional<StepReport> Trainer::State::step(StepData& data,
                                               std::vector<double> weights,
                                               const Rates& rates,
                                               const Pause& pause) {
  for (const double weight : weights)
    require(weight >= 0 && std::isfinite(weight),
            "the total weight of a step must be at least 0, got " + std::to_string(weight));
  check_partial();
  const auto start = Clock::now();
  if (watch) watch->begin_step();
  StepReport report;
  report.learning_rate = rates.at(store.counters().global_step);
  is_updating = false;
  try {
    if (!run(report, data, std::move(weights), pause)) return std::nullopt;
    report.has_no_weight() ? skip(report) : update(report);
  } catch (...) {
    drop_partial();
    throw;
  }
  report.global_step = store.counters().global_step;
  report.seconds = seconds_since(start);
  return report;
}

std::optional<StepReport> Trainer::State::step(Batch& batch,
                                               const Rates& rates,
                                               const Pause& pause) {
  require(batch.micro_batches() == micro_batches(), [&] {
    const std::string passes =
        options.step.accumulate == 1 ? "" : std::to_string(options.step.accumulate) + " passes of ";
    return "the program runs " + passes + std::to_string(shape.micro_batches) +
           " micro-batches, the mini-batch has " + std::to_string(batch.micro_batches());
  });
  require(batch.slices() == shape.slices,
          "the program cuts sequences into " + std::to_string(shape.slices) +
              " slices, the mini-batch is cut into " + std::to_string(batch.slices()));
  require(batch.samples() >= 1, "a mini-batch to learn from must have at least 1 sample, got 0");
  if (store.counters().mini_batches == 0)
    refuse_lone_values(parts.norm_values, batch.samples(), micro_batches());
  std::optional<StepReport> report = step(batch, weights_of(batch), rates, pause);
  if (!report) return report;
  report->epoch = batch.epoch;
  report->batch = batch.number;
  report->positions = batch.positions();
  return report;
}

/// What was before does not belong to the first step that comes.
void Trainer::State::begin_records() {
  times = {.optimizer = std::vector<double>(times.optimizer.size(), 0.0)};
  if (watch) watch->restart();
}

/// Makes the record of the step that has ended, where records are asked for.
void Trainer::State::record(const StepReport& report, const Tell& listener) {
  if (!watch) return;
  auto made = watch->record(report, store.counters().mini_batches, times);
  if (!made) return;
  made->validates = validation.has_value();
  if (validation && validation->samples > 0) {
    made->validation_loss = validation->mean_loss();
    made->validation_accuracy = validation->accuracy();
  }
  if (listener) listener(*made);
}

/// Ends a training that only skips steps; another step would be the first of a new count.
void Trainer::State::require_progress() {
  const std::int64_t skipped = store.counters().skipped_in_a_row;
  if (skipped < options.step.max_skipped) return;
  count([](TrainingCounters& counters) { counters.skipped_in_a_row = 0; });
  const std::int64_t global_step = store.counters().global_step;
  throw Diverged("training diverged: the gradient was not finite in " + std::to_string(skipped) +
                 (skipped == 1 ? " step" : " steps") + " in a row, each of them skipped, after " +
                 std::to_string(global_step) + (global_step == 1 ? " update; " : " updates; ") +
                 named("max_skipped") + " allows no more");
}

}  // namespace millrace
