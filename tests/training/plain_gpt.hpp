// The plain loop that every pipeline of a transformer is held against: one micro-batch after the
// other, slice after slice, forwards and then backwards through the whole model, with tied weights,
// master values and clipping written out. Shares no code with programs, executors, trainer or
// loader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/layer.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/loader.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/trainer_options.hpp"
#include "support/test_options.hpp"

namespace millrace::testing_training {

/// What a training did: the mean loss of every step, and the weights at its end.
struct GptRun {
  std::map<std::int64_t, double> losses;
  std::string weights;

  friend bool operator==(const GptRun&, const GptRun&) = default;
};

class PlainGpt {
 public:
  PlainGpt(const ModelSpec& model, const TestOptions& options)
      : spec_(model),
        options_(options),
        slices_(options.pipeline.shape.slices.value_or(1)),
        whole_(std::move(
            build_stages(model, std::vector<int>{0, model.layer_count()}, options.step.seed)
                .front())),
        optimizer_(make_optimizer(options.step.optimizer)) {
    whole_->reserve(options.pipeline.shape.micro_batches, slices_);
    std::map<std::string, Parameter*> by_name;
    for (Parameter* parameter : whole_->parameters()) by_name[parameter->name] = parameter;
    for (const auto& [name, parameter] : by_name)
      weights_.push_back(Weight(*parameter, *optimizer_));
    for (const auto& group : spec_.tied)
      for (const std::string& name : group) named(name).copy_from(named(group.front()));
    for (Weight& weight : weights_) weight.round();
  }

  GptRun learn(const Dataset& data) {
    GptRun run;
    for (std::int64_t step = 0; step < options_.fit.steps; ++step) {
      Batch batch;
      batch.fill(data, rows_of(data, step), options_.pipeline.shape.micro_batches, slices_);
      for (Weight& weight : weights_) weight.parameter->gradient.fill_zero();
      run.losses[step + 1] = accumulate(batch, step);
      add_tied();
      update(step);
    }
    std::map<std::string, std::string> digests;
    for (const Weight& weight : weights_)
      digests[weight.parameter->name] = tensor_digest(weight.master);
    run.weights = combine_digests(digests);
    return run;
  }

 private:
  /// A parameter, what it is a rounded copy of, and what the optimizer remembers.
  struct Weight {
    Weight(Parameter& of, const Optimizer& optimizer)
        : parameter(&of),
          master(of.value.clone()),
          slots(static_cast<std::size_t>(optimizer.slots()),
                std::vector<float>(of.value.as<float>().size())) {}

    void copy_from(const Weight& other) {
      std::ranges::copy(other.master.as<float>(), master.as<float>().begin());
    }
    void round() {
      std::ranges::copy(master.as<float>(), parameter->value.as<float>().begin());
      round_to(parameter->precision, parameter->value.as<float>());
    }

    Parameter* parameter;
    Tensor master;
    std::vector<std::vector<float>> slots;
  };

  Weight& named(const std::string& name) {
    return *std::ranges::find(
        weights_, name, [](const Weight& weight) { return weight.parameter->name; });
  }

  /// Of lines every one once in an epoch, of which there is one here.
  [[nodiscard]] std::vector<std::int32_t> rows_of(const Dataset& data, std::int64_t step) const {
    if (data.has_documents()) {
      const auto order = shuffled_order(data.size(), options_.step.seed, 0);
      const auto first = order.begin() + step * options_.fit.batch_size;
      return {first, first + options_.fit.batch_size};
    }
    return drawn_windows(
        data, options_.fit.batch_size, options_.step.seed, static_cast<std::uint64_t>(step));
  }

  /// Gradients of the mean loss; the loss is given.
  double accumulate(Batch& batch, std::int64_t step) {
    double weight = 0;
    for (int i = 0; i < options_.pipeline.shape.micro_batches; ++i)
      for (int slice = 0; slice < slices_; ++slice)
        weight += weight_of(batch.targets({MicroBatch{i}, Slice{slice}}));
    LossSum loss;
    for (int i = 0; i < options_.pipeline.shape.micro_batches; ++i) {
      for (int slice = 0; slice < slices_; ++slice)
        loss += pass(batch, {MicroBatch{i}, Slice{slice}}, step, weight, true);
      for (int slice = slices_ - 1; slice >= 0; --slice)
        pass(batch, {MicroBatch{i}, Slice{slice}}, step, weight, false);
    }
    return loss.sum / loss.weight;
  }

  /// How many tokens count.
  static double weight_of(const TensorList& targets) {
    if (targets.size() == 1) return static_cast<double>(targets[0].as<std::int32_t>().size());
    double sum = 0;
    for (const float each : targets[1].as<float>()) sum += static_cast<double>(each);
    return sum;
  }

  LossSum pass(Batch& batch, const Unit& unit, std::int64_t step, double weight, bool forward) {
    const TensorList targets = batch.targets(unit);
    LossSum loss;
    PassContext context;
    context.seed = options_.step.seed;
    context.step = static_cast<std::uint64_t>(step);
    context.micro_batch = unit.micro_batch;
    context.slice = unit.slice;
    context.slices = slices_;
    context.first_sample = batch.first_sample(unit);
    context.first_position = batch.first_position(unit);
    context.loss_scale = 1.0 / weight;
    context.targets = &targets;
    context.loss = &loss;
    context.pool = &pool_;
    if (forward)
      whole_->forward(context, batch.inputs(unit));
    else
      whole_->backward(context, {});
    return loss;
  }

  /// In f32, in the order of the layers, which is that of the group.
  void add_tied() {
    for (const auto& group : spec_.tied) {
      const auto first = named(group.front()).parameter->gradient.as<float>();
      std::vector<float> sum(first.begin(), first.end());
      for (const std::string& name : std::span(group).subspan(1)) {
        const auto term = named(name).parameter->gradient.as<float>();
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
      }
      for (const std::string& name : group)
        std::ranges::copy(sum, named(name).parameter->gradient.as<float>().begin());
    }
  }

  /// Whether the norm has the gradient under another name.
  [[nodiscard]] bool is_counted_elsewhere(const std::string& name) const {
    return std::ranges::any_of(spec_.tied, [&](const auto& group) {
      return name != group.front() && std::ranges::find(group, name) != group.end();
    });
  }

  void update(std::int64_t step) {
    std::vector<double> squares;
    for (const Weight& weight : weights_)
      if (!is_counted_elsewhere(weight.parameter->name))
        squares.push_back(sum_of_squares(weight.parameter->gradient.as<float>()));
    UpdateSettings settings;
    settings.number = step + 1;
    settings.learning_rate = options_.step.learning_rate.at(step);
    settings.gradient_factor = gradient_norm(squares, options_.step.clip_norm).factor;
    for (Weight& weight : weights_) {
      settings.decays = weight.parameter->decays;
      const std::vector<std::span<float>> slots(weight.slots.begin(), weight.slots.end());
      optimizer_->update(
          settings, weight.master.as<float>(), weight.parameter->gradient.as<float>(), slots);
      weight.round();
    }
  }

  ModelSpec spec_;
  TestOptions options_;
  int slices_;
  std::unique_ptr<StageModule> whole_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Weight> weights_;  // by name
  TensorPool pool_;
};

}  // namespace millrace::testing_training
