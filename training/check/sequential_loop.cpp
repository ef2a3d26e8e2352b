#include "training/check/sequential_loop.hpp"

#include <utility>

#include "millrace/stages/module.hpp"
#include "millrace/training/optimizer.hpp"
#include "training/update.hpp"

namespace millrace {
namespace {

/// All stages on one rank.
Shape shape_of(std::size_t stages, const Batch& batch) {
  Shape shape;
  shape.ranks = 1;
  shape.micro_batches = batch.micro_batches();
  shape.slices = batch.slices();
  shape.placement = Placement::loop(1, static_cast<int>(stages));
  return shape;
}

std::vector<HostedStage> hosted(const std::vector<std::unique_ptr<StageBody>>& bodies) {
  std::vector<HostedStage> stages;
  for (std::size_t i = 0; i < bodies.size(); ++i)
    stages.push_back({Replica{0}, Stage{static_cast<std::int32_t>(i)}, bodies[i].get()});
  return stages;
}

}  // namespace

SequentialLoop::SequentialLoop(std::vector<std::unique_ptr<StageBody>> bodies,
                               const StepOptions& options,
                               DType precision,
                               const Batch& batch)
    : options_(options),
      bodies_(std::move(bodies)),
      made_(options.custom_optimizer ? nullptr : make_optimizer(options.optimizer)),
      optimizer_(made_ ? *made_ : *options.custom_optimizer),
      loss_scale_(options.loss_scale.value_or(loss_scale_for(precision))),
      state_(shape_of(bodies_.size(), batch), hosted(bodies_), optimizer_, {}, alone_) {
  for (const auto& body : bodies_) body->reserve(batch.micro_batches(), batch.slices());
  for (const ParameterGroup& group : options.parameters) state_.set(group);
  TrainingCounters counters = state_.counters();
  counters.seed = options.seed;
  counters.loss_scale = first_scale(loss_scale_);
  state_.set_counters(counters);
  for (StateEntry& entry : state_.entries(Rank{0})) entry.parameter->gradient.fill_zero();
}

double SequentialLoop::weight_of(Batch& batch) const {
  const auto* module = dynamic_cast<const StageModule*>(bodies_.back().get());
  if (module == nullptr || module->loss() == nullptr) return static_cast<double>(batch.samples());
  double weight = 0;
  for (int i = 0; i < batch.micro_batches(); ++i)
    for (int slice = 0; slice < batch.slices(); ++slice)
      weight += module->loss()->weight(batch.targets({MicroBatch{i}, Slice{slice}}));
  return weight;
}

/// One unit through all stages: forwards in their order, or backwards against it.
void SequentialLoop::run(
    Batch& batch, const Unit& unit, double loss_scale, LossSum& loss, bool forward) {
  PassContext context;
  context.seed = options_.seed;
  context.step = static_cast<std::uint64_t>(state_.counters().mini_batches);
  context.micro_batch = unit.micro_batch;
  context.slice = unit.slice;
  context.slices = batch.slices();
  context.first_sample = batch.first_sample(unit);
  context.first_position = batch.first_position(unit);
  context.loss_scale = loss_scale;
  const TensorList targets = batch.targets(unit);
  TensorList tensors = forward ? batch.inputs(unit) : TensorList();
  for (std::size_t k = 0; k < bodies_.size(); ++k) {
    const std::size_t i = forward ? k : bodies_.size() - 1 - k;
    PassContext own = context;
    if (i + 1 == bodies_.size()) {
      own.targets = targets.empty() ? nullptr : &targets;
      own.loss = &loss;
    }
    tensors = forward ? bodies_[i]->forward(own, std::move(tensors))
                      : bodies_[i]->backward(own, std::move(tensors));
  }
}

/// By the number of the parameter's name, nothing for what is frozen.
std::vector<double> SequentialLoop::squares() const {
  std::vector<double> sums(state_.names().size(), 0.0);
  for (const StateEntry& entry : state_.entries(Rank{0}))
    if (entry.is_trained() && !entry.parameter->frozen)
      sums[entry.number] = sum_of_squares(entry.parameter->gradient.as<float>());
  return sums;
}

/// As Trainer does for who wants to see gradients.
void SequentialLoop::unscale(double scale) {
  if (scale == 1) return;
  const auto factor = static_cast<float>(1 / scale);
  for (Parameter* parameter : state_.parameters())
    for (float& number : parameter->gradient.as<float>()) number *= factor;
}

LoopStep SequentialLoop::step(Batch& batch) {
  const double scale = state_.counters().loss_scale.value;
  const double loss_scale = scale / weight_of(batch);
  LoopStep step;
  for (int i = 0; i < batch.micro_batches(); ++i) {
    std::vector<LossSum> losses(static_cast<std::size_t>(batch.slices()));
    for (int slice = 0; slice < batch.slices(); ++slice)
      run(batch,
          {MicroBatch{i}, Slice{slice}},
          loss_scale,
          losses[static_cast<std::size_t>(slice)],
          true);
    for (const LossSum& loss : losses) step.loss += loss;
    LossSum unused;
    for (int slice = batch.slices() - 1; slice >= 0; --slice)
      run(batch, {MicroBatch{i}, Slice{slice}}, loss_scale, unused, false);
  }
  unscale(scale);
  for (const Parameter* parameter : state_.parameters()) {
    const auto gradient = parameter->gradient.as<float>();
    step.gradients[parameter->name] = {gradient.begin(), gradient.end()};
  }
  update();
  return step;
}

/// One norm, one verdict, one clip factor, one update of every parameter.
void SequentialLoop::update() {
  const GradientNorm norm = gradient_norm(squares(), options_.clip_norm);
  TrainingCounters counters = state_.counters();
  UpdateSettings settings;
  settings.number = counters.global_step + 1;
  settings.learning_rate = options_.learning_rate.at(counters.global_step);
  settings.gradient_factor = norm.factor;
  if (!norm.overflow)
    for (const auto& body : bodies_) body->update_statistics();
  for (StateEntry& entry : state_.entries(Rank{0})) {
    if (norm.overflow) {
      entry.parameter->gradient.fill_zero();
    } else {
      move(entry, optimizer_, settings);
    }
  }
  ++counters.mini_batches;
  counters.global_step += norm.overflow ? 0 : 1;
  counters.loss_scale = next_scale(counters.loss_scale, !norm.overflow, loss_scale_);
  state_.set_counters(counters);
}

}  // namespace millrace
