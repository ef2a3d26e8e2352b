// What a trainer is made of, and what it offers.
#include "millrace/training/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/settings.hpp"
#include "millrace/training/step_times.hpp"
#include "training/agreement.hpp"
#include "training/lone_values.hpp"
#include "training/parts.hpp"
#include "training/ties.hpp"
#include "training/trainer_state.hpp"
#include "training/update.hpp"

namespace millrace {
namespace {

std::shared_ptr<const Optimizer> optimizer_of(const TrainerOptions& options) {
  if (options.step.custom_optimizer) return options.step.custom_optimizer;
  return make_optimizer(options.step.optimizer);
}

void check(const TrainerOptions& options, const TrainerParts& parts) {
  const Shape& shape = parts.executor->program().shape;
  check_passes(options.step, shape);
  check_copies(options.step, parts.seat.grid());
  check_settings(options);
  require(options.fit.steps.value_or(options.fit.epochs) >= 1,
          "training needs at least 1 epoch or 1 step, got 0 of both");
  options.step.learning_rate.check();
}

/// The sizes of mini-batches: the full one and, where that is known, a smaller last one.
std::vector<std::int64_t> mini_batches_of(const TrainerOptions& options, std::int64_t epoch_size) {
  if (epoch_size == 0) return {options.fit.batch_size};
  std::vector<std::int64_t> sizes = {std::min(options.fit.batch_size, epoch_size)};
  const std::int64_t last = epoch_size % sizes.front();
  if (last > 0 && options.fit.last_batch == LastBatch::Update) sizes.push_back(last);
  return sizes;
}

/// What is wrong is said about the group that says it.
void set(TrainingState& store, const ParameterGroup& group) {
  try {
    store.set(group);
  } catch (const InvalidArgument& error) {
    throw InvalidParameter(named("parameters") + " " + to_string(group) + ": " + error.what());
  }
}

}  // namespace

Trainer::State::State(TrainerParts given)
    : options(given.options),
      optimizer(optimizer_of(options)),
      parts(agreed(std::move(given), options)),
      group(parts.group != nullptr ? *parts.group : alone),
      shape(parts.executor->program().shape),
      loss_scale(options.step.loss_scale.value_or(loss_scale_for(parts.precision))),
      store(shape,
            parts.stages,
            *optimizer,
            tied_names(shape, options.step.tied),
            group,
            parts.seat,
            options.step.shard_optimizer && parts.seat.grid().data() > 1) {
  check(options, parts);
  if (options.step.shard_optimizer && parts.seat.grid().data() > 1)
    shards.emplace(store, parts.seat);
  share_tied_values(store, tied_names(shape, options.step.tied), options.step.tied, group);
  count([&](TrainingCounters& counters) {
    counters.seed = options.step.seed;
    counters.loss_scale = first_scale(loss_scale);
  });
  const StageGraph graph(shape);
  sinks.resize(graph.sinks());
  const auto is_weight = [](double weight) { return std::isfinite(weight) && weight >= 0; };
  require(std::ranges::all_of(options.step.loss_weights, is_weight),
          "loss_weights must be finite and at least 0");
  require(options.step.loss_weights.empty() || options.step.loss_weights.size() == sinks.size(),
          [&] {
            return "got " + std::to_string(options.step.loss_weights.size()) + " loss weights; " +
                   std::to_string(sinks.size()) + " of the stages have a loss";
          });
  for (const HostedStage& hosted : parts.stages)
    if (const auto sink = graph.sink(hosted.stage)) sinks[*sink] = hosted.body;
  for (const ParameterGroup& settings : options.step.parameters) set(store, settings);
  zero_gradients(store);
  times.optimizer.resize(static_cast<std::size_t>(shape.ranks));
  if (options.watch.records) watch = std::make_unique<StepWatch>(*parts.executor, group);
}

Trainer::Trainer(TrainerParts parts) : state_(std::make_unique<State>(std::move(parts))) {
  state_->before_update = &before_update;
  state_->on_gradients = &on_gradients;
}

Trainer::Trainer(const Plan& plan, Bodies bodies, const TrainerOptions& options)
    : Trainer(assemble(plan, std::move(bodies), options, {})) {}

Trainer::Trainer(const ModelSpec& model, const Plan& plan, const TrainerOptions& options)
    : Trainer(assemble(model, plan, options, {})) {}

Trainer::Trainer(const ModelSpec& model,
                 const PipelineOptions& pipeline,
                 const TrainerOptions& options)
    : Trainer(model, plan_of(pipeline), options) {}

Trainer::~Trainer() = default;

StepReport Trainer::step(StepData& data, double total_weight) {
  std::vector<double> weights(state_->sinks.size(), total_weight);
  StepReport report = state_->step(data, std::move(weights), state_->rates()).value();
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

std::vector<std::string> Trainer::warnings(std::int64_t epoch_size) const {
  std::vector<std::string> warnings = plan_warnings(executor().program(), stages());
  const auto names = state().names();
  const bool has_statistics = std::ranges::any_of(
      names, [&](const std::string& name) { return !state().is_trained(name); });
  if (has_statistics && state_->micro_batches() > 1)
    warnings.push_back("batch norm normalises each of the " +
                       std::to_string(state_->micro_batches()) +
                       " micro-batches by its own mean and variance, which differ from those of "
                       "the whole mini-batch: results depend on the number of micro-batches");
  for (const std::int64_t samples : mini_batches_of(options(), epoch_size)) {
    const int micro_batches = state_->micro_batches();
    const std::string lone = lone_values_warning(state_->parts.norm_values, samples, micro_batches);
    if (!lone.empty()) warnings.push_back(lone);
  }
  return warnings;
}

std::string Trainer::weights_hash() {
  return hash_of(state_->store, state_->group, state_->optimizer_shards());
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
