// The step: what it means, from the mini-batch to the update.
#include "millrace/training/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/stages/module.hpp"
#include "training/agreement.hpp"
#include "training/parts.hpp"
#include "training/pass_data.hpp"
#include "training/ties.hpp"
#include "training/trainer_state.hpp"
#include "training/update.hpp"
#include "training/watch/inspection.hpp"
#include "training/watch/step_times.hpp"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::shared_ptr<const Optimizer> optimizer_of(const TrainerOptions& options) {
  if (options.custom_optimizer) return options.custom_optimizer;
  return make_optimizer(options.optimizer);
}

void check(const TrainerOptions& options, const Shape& shape) {
  check_passes(options, shape);
  require(!options.clip_norm || *options.clip_norm > 0,
          "the clip norm must be above 0, got " + std::to_string(options.clip_norm.value_or(0)));
  require(options.batch_size >= 1,
          "the mini-batch must have at least 1 sample, got " + std::to_string(options.batch_size));
  require(options.epochs >= 1 || options.steps >= 1,
          "training needs at least 1 epoch or 1 step, got " + std::to_string(options.epochs) +
              " epochs and " + std::to_string(options.steps) + " steps");
  require(options.steps >= 0,
          "the number of steps must be at least 0, got " + std::to_string(options.steps));
  require(options.max_skipped >= 1,
          named("max_skipped") + " must be at least 1 step, got " +
              std::to_string(options.max_skipped));
  require(options.inspect_gradients >= 0,
          "gradients are inspected in 0 steps or more, got " +
              std::to_string(options.inspect_gradients));
  options.learning_rate.check();
}

/// What is wrong is said about the group that says it.
void set(TrainingState& store, const ParameterGroup& group) {
  try {
    store.set(group);
  } catch (const InvalidArgument& error) {
    throw InvalidParameter(named("parameters") + " " + to_string(group) + ": " + error.what());
  }
}

/// Losses are added one by one, so that their sum does not depend on the passes.
void add(StepReport& report, const StepResult& pass) {
  for (const LossSum& unit : pass.unit_losses) report.loss += unit;
  report.samples += pass.samples;
  std::vector<std::size_t>& peaks = report.peak_stash_bytes;
  peaks.resize(pass.peak_stash_bytes.size());
  for (std::size_t i = 0; i < peaks.size(); ++i)
    peaks[i] = std::max(peaks[i], pass.peak_stash_bytes[i]);
}

}  // namespace

Trainer::State::State(TrainerParts given, const TrainerOptions& trainer_options)
    : options(trainer_options),
      optimizer(optimizer_of(options)),
      parts(agreed(std::move(given), options)),
      group(parts.group != nullptr ? *parts.group : alone),
      shape(parts.executor->program().shape),
      loss_scale(options.loss_scale.value_or(loss_scale_for(parts.precision))),
      store(shape, parts.stages, *optimizer, tied_names(shape, options), group) {
  check(options, shape);
  share_tied_values(store, tied_names(shape, options), options, group);
  count([&](TrainingCounters& counters) {
    counters.seed = options.seed;
    counters.loss_scale = first_scale(loss_scale);
  });
  for (const HostedStage& hosted : parts.stages)
    if (hosted.stage.value == shape.stages() - 1)
      if (const auto* module = dynamic_cast<const StageModule*>(hosted.body)) loss = module->loss();
  for (const std::string& pattern : options.frozen) store.freeze(pattern);
  for (const ParameterGroup& settings : options.parameters) set(store, settings);
  zero_gradients(store);
  times.optimizer.resize(static_cast<std::size_t>(shape.ranks));
  if (options.records) watch = std::make_unique<StepWatch>(*parts.executor, group);
}

bool Trainer::State::hosts_loss() const {
  return std::any_of(parts.stages.begin(), parts.stages.end(), [&](const HostedStage& hosted) {
    return hosted.stage.value == shape.stages() - 1;
  });
}

/// What the losses of this mini-batch will weigh in all.
double Trainer::State::weight_of(Batch& batch) const {
  if (loss == nullptr) return static_cast<double>(batch.samples());
  double weight = 0;
  require(!batch.targets({MicroBatch{0}, Slice{0}}).empty(),
          "a mini-batch to learn from must have targets");
  for (int i = 0; i < batch.micro_batches(); ++i)
    for (int slice = 0; slice < batch.slices(); ++slice)
      weight += loss->weight(batch.targets({MicroBatch{i}, Slice{slice}}));
  return weight;
}

/// Makes loss, samples, peaks and the declared weight known to every member, in one collective.
void Trainer::State::agree(StepResult& result, double& declared) const {
  if (group.size() == 1) return;
  // A last stage with copies lives on several ranks, and each of them declares the same weight.
  std::vector<double> values{
      hosts_loss() ? declared : 0.0, hosts_loss() ? 1.0 : 0.0, static_cast<double>(result.samples)};
  for (const LossSum& unit : result.unit_losses) {
    values.push_back(unit.sum);
    values.push_back(unit.weight);
    values.push_back(static_cast<double>(unit.correct));
    values.push_back(static_cast<double>(unit.judged));
  }
  result.peak_stash_bytes.resize(static_cast<std::size_t>(shape.ranks));
  for (const std::size_t peak : result.peak_stash_bytes)
    values.push_back(static_cast<double>(peak));
  group.sum(values, Label::Loss);

  declared = values[0] / values[1];
  result.samples = static_cast<std::int64_t>(values[2]);
  auto value = values.begin() + 3;
  result.loss = LossSum();
  for (LossSum& unit : result.unit_losses) {
    unit = {value[0],
            value[1],
            static_cast<std::int64_t>(value[2]),
            static_cast<std::int64_t>(value[3])};
    result.loss += unit;
    value += 4;
  }
  for (std::size_t& peak : result.peak_stash_bytes) peak = static_cast<std::size_t>(*value++);
}

/// One run of the program, what it found known to every member.
StepResult Trainer::State::run_pass(StepData& data,
                                    const StepSettings& settings,
                                    double& declared) {
  const Timed timed(times.pass);
  PassData of_pass(data, settings.in_step(MicroBatch{0}, shape));
  StepResult result = parts.executor->run(of_pass, settings);
  if (watch) watch->add_pass();
  agree(result, declared);
  return result;
}

/// The pipeline's part of a step: gradients accumulated over all passes, loss and peaks known.
/// False when it was paused between two of them, what was added up until then in the state.
bool Trainer::State::run(StepReport& report,
                         StepData& data,
                         double total_weight,
                         const Pause& pause) {
  StepSettings settings;
  settings.seed = store.counters().seed;
  settings.step = static_cast<std::uint64_t>(store.counters().mini_batches);
  report.loss_scale = store.counters().loss_scale.value;
  settings.loss_scale = report.loss_scale / total_weight;
  settings.deadline = options.deadline;
  settings.passes = options.accumulate;
  take_partial(report, settings);
  count([](TrainingCounters& counters) { ++counters.mini_batches; });
  group.begin_step(settings.step);
  while (true) {
    add(report, run_pass(data, settings, total_weight));
    if (++settings.pass == settings.passes) break;
    if (!pause || !pause()) continue;
    keep_partial(report, settings);
    return false;
  }
  require(std::abs(report.loss.weight - total_weight) <= 1e-9 * total_weight,
          "the step was scaled for a total weight of " + std::to_string(total_weight) +
              ", but its losses weighed " + std::to_string(report.loss.weight));
  return true;
}

/// The step goes on behind the passes of an unfinished update, if there is one.
void Trainer::State::take_partial(StepReport& report, StepSettings& settings) {
  const PartialUpdate begun = store.counters().partial;
  require(begun.micro_batches % shape.micro_batches == 0 && begun.micro_batches < micro_batches(),
          [&] {
            return "the unfinished update ends behind " + std::to_string(begun.micro_batches) +
                   " micro-batches, where none of " + std::to_string(options.accumulate) +
                   " passes of " + std::to_string(shape.micro_batches) + " begins";
          });
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
  if (inspections == options.inspect_gradients) return;
  ++inspections;
  const GradientInspection found = inspected(store, group, scale);
  if (on_gradients != nullptr && *on_gradients) (*on_gradients)(found);
}

/// The user's look at the gradients, one norm, one verdict, one clip factor, one
/// update of every stage.
void Trainer::State::update(StepReport& report) {
  inspect(report.loss_scale);
  const Timed timed(times.update);
  double scale = report.loss_scale;
  if (before_update != nullptr && *before_update) {
    if (scale != 1) unscale_gradients(store, std::exchange(scale, 1));
    visit_gradients(store, *before_update);
  }
  const GradientNorm norm =
      norm_of(store, *parts.executor, group, options.clip_norm, scale, times.optimizer);
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
  for (const HostedStage& hosted : parts.stages) hosted.body->update_statistics();
  millrace::update(store, *parts.executor, *optimizer, settings, times.optimizer);
  count([](TrainingCounters& counters) {
    ++counters.global_step;
    counters.skipped_in_a_row = 0;
  });
}

std::optional<StepReport> Trainer::State::step(StepData& data,
                                               double total_weight,
                                               const Rates& rates,
                                               const Pause& pause) {
  require(total_weight > 0 && std::isfinite(total_weight),
          "the total weight of a step must be above 0, got " + std::to_string(total_weight));
  const auto start = Clock::now();
  if (watch) watch->begin_step();
  StepReport report;
  report.learning_rate = rates.at(store.counters().global_step);
  try {
    if (!run(report, data, total_weight, pause)) return std::nullopt;
    update(report);
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
        options.accumulate == 1 ? "" : std::to_string(options.accumulate) + " passes of ";
    return "the program runs " + passes + std::to_string(shape.micro_batches) +
           " micro-batches, the mini-batch has " + std::to_string(batch.micro_batches());
  });
  require(batch.slices() == shape.slices,
          "the program cuts sequences into " + std::to_string(shape.slices) +
              " slices, the mini-batch is cut into " + std::to_string(batch.slices()));
  require(batch.samples() >= 1, "a mini-batch to learn from must have at least 1 sample, got 0");
  std::optional<StepReport> report = step(batch, weight_of(batch), rates, pause);
  if (!report) return report;
  report->epoch = batch.epoch;
  report->batch = batch.number;
  return report;
}

/// What was before does not belong to the first step that comes.
void Trainer::State::begin_records() {
  times = {.optimizer = std::vector<double>(times.optimizer.size(), 0.0)};
  if (watch) watch->restart();
}

/// Makes the record of the step that has ended, where records are asked for.
void Trainer::State::record(const StepReport& report, const Tell& tell) {
  if (!watch) return;
  const auto made = watch->record(report, store.counters().mini_batches, times);
  if (made && tell) tell(*made);
}

/// Ends a training that only skips steps; another step would be the first of a new count.
void Trainer::State::require_progress() {
  const std::int64_t skipped = store.counters().skipped_in_a_row;
  if (skipped < options.max_skipped) return;
  count([](TrainingCounters& counters) { counters.skipped_in_a_row = 0; });
  const std::int64_t global_step = store.counters().global_step;
  throw Diverged("training diverged: the gradient was not finite in " + std::to_string(skipped) +
                 (skipped == 1 ? " step" : " steps") + " in a row, each of them skipped, after " +
                 std::to_string(global_step) + (global_step == 1 ? " update; " : " updates; ") +
                 named("max_skipped") + " allows no more");
}

Trainer::Trainer(TrainerParts parts, const TrainerOptions& options)
    : state_(std::make_unique<State>(std::move(parts), options)) {
  state_->before_update = &before_update;
  state_->on_gradients = &on_gradients;
}

Trainer::Trainer(const Program& program,
                 std::vector<std::unique_ptr<StageBody>> bodies,
                 const TrainerOptions& options)
    : Trainer(assemble(program, std::move(bodies), options, {}), options) {}

Trainer::Trainer(const ModelSpec& model, const Program& program, const TrainerOptions& options)
    : Trainer(assemble(model, program, options, {}), options) {}

Trainer::Trainer(const ModelSpec& model, const TrainerOptions& options)
    : Trainer(model, training_program(options), options) {}

Trainer::~Trainer() = default;

StepReport Trainer::step(StepData& data, double total_weight) {
  StepReport report = state_->step(data, total_weight, state_->rates()).value();
  state_->record(report, on_record);
  state_->require_progress();
  return report;
}

StepReport Trainer::step(Batch& batch) {
  StepReport report = state_->step(batch, state_->rates()).value();
  state_->record(report, on_record);
  state_->require_progress();
  return report;
}

std::vector<std::string> Trainer::warnings() const {
  std::vector<std::string> sentences = plan_warnings(executor().program(), stages());
  const auto names = state().names();
  const bool has_statistics = std::ranges::any_of(
      names, [&](const std::string& name) { return !state().is_trained(name); });
  if (has_statistics && state_->micro_batches() > 1)
    sentences.push_back("batch norm normalises each of the " +
                        std::to_string(state_->micro_batches()) +
                        " micro-batches by its own mean and variance, which differ from those of "
                        "the whole mini-batch: results depend on the number of micro-batches");
  return sentences;
}

std::string Trainer::weights_hash() {
  return hash_of(state_->store, state_->group);
}

std::int64_t Trainer::global_step() const {
  return state_->store.counters().global_step;
}

const TrainerOptions& Trainer::options() const {
  return state_->options;
}

const Executor& Trainer::executor() const {
  return *state_->parts.executor;
}

std::span<const HostedStage> Trainer::stages() const {
  return state_->parts.stages;
}

TrainingState& Trainer::state() {
  return state_->store;
}

const TrainingState& Trainer::state() const {
  return state_->store;
}

}  // namespace millrace
