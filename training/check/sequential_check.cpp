// Runs the trainer and the plain loop side by side and compares them after every step.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/checks.hpp"
#include "millrace/training/trainer.hpp"
#include "training/check/sequential_loop.hpp"

namespace millrace {
namespace {

template <class Number>
bool same_bits(Number a, Number b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

std::optional<SequentialDifference> difference_of(const std::string& name,
                                                  const std::string& part,
                                                  std::span<const float> sequential,
                                                  std::span<const float> pipeline) {
  require(sequential.size() == pipeline.size(),
          "'" + name + "' has " + std::to_string(sequential.size()) + " elements in the loop, " +
              std::to_string(pipeline.size()) + " in the pipeline");
  SequentialDifference found;
  for (std::size_t i = 0; i < sequential.size(); ++i) {
    if (same_bits(sequential[i], pipeline[i])) continue;
    if (found.elements++ > 0) continue;
    found.tensor = name;
    found.part = part;
    found.index = static_cast<std::int64_t>(i);
    found.sequential = static_cast<double>(sequential[i]);
    found.pipeline = static_cast<double>(pipeline[i]);
  }
  if (found.elements == 0) return {};
  return found;
}

std::optional<SequentialDifference> difference_of(const LossSum& sequential,
                                                  const LossSum& pipeline) {
  if (same_bits(sequential.sum, pipeline.sum)) return {};
  return SequentialDifference{0, "loss", "sum", 0, 1, sequential.sum, pipeline.sum};
}

std::optional<SequentialDifference> difference_of(const TensorsByName& sequential,
                                                  const TensorsByName& pipeline) {
  for (const auto& [name, gradient] : sequential) {
    const auto other = pipeline.find(name);
    require(other != pipeline.end(), "the pipeline has no parameter '" + name + "'");
    if (auto found = difference_of(name, "gradient", gradient, other->second)) return found;
  }
  return {};
}

std::optional<SequentialDifference> difference_of(const TrainingState& sequential,
                                                  const TrainingState& pipeline) {
  for (const std::string& name : sequential.names())
    if (auto found = difference_of(
            name, "value", sequential.read(name).as<float>(), pipeline.read(name).as<float>()))
      return found;
  return {};
}

/// What both sides train with; a curve that needs its end ends with the comparison.
TrainerOptions options_for(TrainerOptions options, int steps) {
  require(steps >= 1, "a comparison needs at least 1 step, got " + std::to_string(steps));
  require(options.step.tied.empty(), "tied weights cannot be compared with the sequential loop");
  if (options.step.learning_rate.needs_total()) options.step.learning_rate.total_updates = steps;
  options.save = {};
  return options;
}

SequentialComparison compared(Trainer& trainer, SequentialLoop& loop, Batch& batch, int steps) {
  SequentialComparison comparison;
  comparison.first = difference_of(loop.state(), trainer.state());
  TensorsByName gradients;
  trainer.before_update = [&](std::span<Parameter* const> parameters) {
    for (const Parameter* parameter : parameters) {
      const auto gradient = parameter->gradient.as<float>();
      gradients[parameter->name] = {gradient.begin(), gradient.end()};
    }
  };
  while (!comparison.first && comparison.steps < steps) {
    const StepReport report = trainer.step(batch);
    const LoopStep step = loop.step(batch);
    comparison.first = difference_of(step.loss, report.loss);
    if (!comparison.first) comparison.first = difference_of(step.gradients, gradients);
    if (!comparison.first) comparison.first = difference_of(loop.state(), trainer.state());
    ++comparison.steps;
    if (comparison.first) comparison.first->step = comparison.steps;
  }
  return comparison;
}

}  // namespace

SequentialComparison verify_against_sequential(const ModelSpec& model,
                                               const PipelineOptions& pipeline,
                                               const Dataset& batch,
                                               const TrainerOptions& options,
                                               int steps) {
  const TrainerOptions both = options_for(options, steps);
  Trainer trainer(model, pipeline, both);
  const LoaderOptions loading = trainer.loader_options();
  Batch samples(batch, loading.micro_batches, loading.slices);
  std::vector<std::unique_ptr<StageBody>> whole;
  const std::array<int, 2> boundaries = {0, model.layer_count()};
  for (auto& module : build_stages(model, boundaries, both.step.seed))
    whole.push_back(std::move(module));
  SequentialLoop loop(std::move(whole), both.step, model.precision, samples);
  return compared(trainer, loop, samples, steps);
}

SequentialComparison verify_against_sequential(const Program& program,
                                               const MakeStages& make,
                                               const Dataset& batch,
                                               const TrainerOptions& options,
                                               int steps) {
  const TrainerOptions both = options_for(options, steps);
  require(
      program.shape.replicas() == 1 && program.shape.edges.empty() && program.shape.ties.empty(),
      "stages of your own can be compared where they are a chain and every stage is hosted "
      "once; this program has copies, other edges or ties");
  Trainer trainer({program}, make(), both);
  const LoaderOptions loading = trainer.loader_options();
  Batch samples(batch, loading.micro_batches, loading.slices);
  SequentialLoop loop(make(), both.step, DType::F32, samples);
  return compared(trainer, loop, samples, steps);
}

std::string to_string(const SequentialComparison& comparison) {
  const std::string steps =
      std::to_string(comparison.steps) + (comparison.steps == 1 ? " step" : " steps");
  if (comparison.same()) return "the same bits after " + steps;
  const SequentialDifference& first = *comparison.first;
  std::array<char, 160> values{};
  std::snprintf(values.data(),
                values.size(),
                ": %.9g in the sequential loop, %.9g in the pipeline (%lld of its elements differ)",
                first.sequential,
                first.pipeline,
                static_cast<long long>(first.elements));
  return "step " + std::to_string(first.step) + ": the " + first.part + " of '" + first.tensor +
         "' differs first, at element " + std::to_string(first.index) + values.data();
}

}  // namespace millrace
