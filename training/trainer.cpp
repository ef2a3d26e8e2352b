// The step and the loops around it.
#include "millrace/training/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/stages/module.hpp"
#include "training/agreement.hpp"
#include "training/pipeline.hpp"
#include "training/trainer_state.hpp"

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

void check(const TrainerOptions& options) {
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
  options.learning_rate.check();
}

}  // namespace

Trainer::State::State(TrainerParts given, const TrainerOptions& trainer_options)
    : options(trainer_options),
      optimizer(optimizer_of(options)),
      parts(agreed(std::move(given), options)),
      team(parts.team != nullptr ? *parts.team : alone),
      shape(parts.executor->program().shape),
      model(shape, parts.stages, *optimizer, options.tied, team) {
  check(options);
  for (const HostedStage& hosted : parts.stages)
    if (hosted.stage.value == shape.stages() - 1)
      if (const auto* module = dynamic_cast<const StageModule*>(hosted.body)) loss = module->loss();
  for (const std::string& pattern : options.frozen) model.freeze(pattern, true);
  model.zero_gradients();
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
    weight += loss->weight(batch.targets({MicroBatch{i}, Slice{0}})[0]);
  return weight;
}

/// Makes loss, samples, peaks and the declared weight known to every member, in one collective.
void Trainer::State::agree(StepResult& result, double& declared) const {
  if (team.members() == 1) return;
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
  team.sum(values, Topic::Loss);

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

/// The pipeline's part of a step: gradients accumulated, loss and peaks known.
void Trainer::State::run(StepReport& report, StepData& data, double total_weight) {
  StepSettings settings;
  settings.seed = options.seed;
  settings.step = batches++;
  settings.loss_scale = 1 / total_weight;
  settings.deadline = options.deadline;
  team.begin_step(settings.step);
  StepResult result = parts.executor->run(data, settings);
  agree(result, total_weight);
  require(std::abs(result.loss.weight - total_weight) <= 1e-9 * total_weight,
          "the step was scaled for a total weight of " + std::to_string(total_weight) +
              ", but its losses weighed " + std::to_string(result.loss.weight));
  report.loss = result.loss;
  report.samples = result.samples;
  report.peak_stash_bytes = std::move(result.peak_stash_bytes);
}

/// Tied gradients added up, the user's look at them, one norm, one verdict, one clip factor, one
/// update of every stage.
void Trainer::State::update(StepReport& report) {
  model.share_tied_gradients();
  if (before_update != nullptr && *before_update) model.visit_gradients(*before_update);
  const GradientNorm norm = model.norm(*parts.executor, options.clip_norm);
  report.gradient_norm = norm.norm;
  report.clip_factor = norm.factor;
  report.skipped = norm.overflow;
  if (norm.overflow) {
    ++skipped_in_a_row;
    model.zero_gradients();
    return;
  }
  skipped_in_a_row = 0;
  UpdateSettings settings;
  settings.number = global_step + 1;
  settings.learning_rate = report.learning_rate;
  settings.gradient_factor = norm.factor;
  model.update(*parts.executor, settings);
  ++global_step;
}

StepReport Trainer::State::step(StepData& data, double total_weight, const Rates& rates) {
  require(total_weight > 0 && std::isfinite(total_weight),
          "the total weight of a step must be above 0, got " + std::to_string(total_weight));
  const auto start = Clock::now();
  StepReport report;
  report.learning_rate = rates.at(global_step);
  try {
    run(report, data, total_weight);
    update(report);
  } catch (...) {
    model.zero_gradients();
    throw;
  }
  report.global_step = global_step;
  report.seconds = seconds_since(start);
  return report;
}

StepReport Trainer::State::step(Batch& batch, const Rates& rates) {
  require(batch.micro_batches() == shape.micro_batches,
          "the program runs " + std::to_string(shape.micro_batches) +
              " micro-batches, the mini-batch has " + std::to_string(batch.micro_batches()));
  require(batch.samples() >= 1, "a mini-batch to learn from must have at least 1 sample, got 0");
  StepReport report = step(batch, weight_of(batch), rates);
  report.epoch = batch.epoch;
  report.batch = batch.number;
  return report;
}

/// Ends a training that only skips steps; another step would be the first of a new count.
void Trainer::State::require_progress() {
  if (skipped_in_a_row < options.max_skipped) return;
  const std::int64_t skipped = std::exchange(skipped_in_a_row, 0);
  throw Diverged("training diverged: the gradient was not finite in " + std::to_string(skipped) +
                 (skipped == 1 ? " step" : " steps") + " in a row, each of them skipped, after " +
                 std::to_string(global_step) + (global_step == 1 ? " update; " : " updates; ") +
                 named("max_skipped") + " allows no more");
}

Trainer::Trainer(TrainerParts parts, const TrainerOptions& options)
    : state_(std::make_unique<State>(std::move(parts), options)) {
  state_->before_update = &before_update;
}

Trainer::Trainer(const Program& program,
                 std::vector<std::unique_ptr<StageBody>> bodies,
                 const TrainerOptions& options)
    : Trainer(assemble(program, std::move(bodies), options), options) {}

Trainer::Trainer(const ModelSpec& model, const Program& program, const TrainerOptions& options)
    : Trainer(program, model_bodies(model, program.shape, options), options) {}

Trainer::Trainer(const ModelSpec& model, const TrainerOptions& options)
    : Trainer(model, training_program(options), options) {}

Trainer::~Trainer() = default;

StepReport Trainer::step(StepData& data, double total_weight) {
  StepReport report = state_->step(data, total_weight, state_->rates());
  state_->require_progress();
  return report;
}

StepReport Trainer::step(Batch& batch) {
  StepReport report = state_->step(batch, state_->rates());
  state_->require_progress();
  return report;
}

FitReport Trainer::fit(const Dataset& data, const std::stop_token& stop) {
  const TrainerOptions& options = state_->options;
  agree_on_data(state_->team, data, options.batch_size, options);
  LoaderOptions loading;
  loading.batch_size = options.batch_size;
  loading.micro_batches = state_->shape.micro_batches;
  loading.seed = options.seed;
  loading.last_batch = options.last_batch;
  Loader loader(data, loading);
  const std::int64_t per_epoch = loader.batches_per_epoch();
  const std::int64_t total = options.steps > 0 ? options.steps : options.epochs * per_epoch;
  LearningRate curve = options.learning_rate;
  Rates rates{&curve};
  if (curve.needs_total()) {
    curve.total_updates = total;
    rates.start = state_->global_step;
  }

  FitReport fitted;
  auto epoch_start = Clock::now();
  for (std::int64_t done = 0; done < total && !stop.stop_requested(); ++done) {
    if (done % per_epoch == 0) {
      fitted.epochs.emplace_back().epoch = done / per_epoch;
      epoch_start = Clock::now();
    }
    const StepReport report = state_->step(loader.next(), rates);
    EpochReport& epoch = fitted.epochs.back();
    epoch.loss += report.loss;
    epoch.samples += report.samples;
    ++(report.skipped ? epoch.skipped : epoch.updates);
    epoch.seconds = seconds_since(epoch_start);
    if (on_step) on_step(report);
    state_->require_progress();
    if ((done + 1) % per_epoch == 0 || done + 1 == total)
      if (on_epoch) on_epoch(epoch);
  }
  for (const EpochReport& epoch : fitted.epochs) {
    fitted.samples += epoch.samples;
    fitted.seconds += epoch.seconds;
  }
  return fitted;
}

void Trainer::freeze(std::string_view pattern, bool frozen) {
  state_->model.freeze(pattern, frozen);
}

std::vector<std::string> Trainer::warnings() const {
  return plan_warnings(executor().program(), stages());
}

std::string Trainer::weights_hash() {
  return state_->model.hash();
}

std::int64_t Trainer::global_step() const {
  return state_->global_step;
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

std::vector<Parameter*> Trainer::parameters() {
  return state_->model.parameters();
}

}  // namespace millrace
