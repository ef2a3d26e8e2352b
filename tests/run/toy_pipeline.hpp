// A pipeline of toy stages with its data, the plain loop that it must equal, and what a step leaves
// back for comparison.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "run/toy_stage.hpp"

namespace millrace::testing_run {

/// Inputs and targets by formula; micro-batches of two and three rows in turn.
class ToyData final : public StepData {
 public:
  explicit ToyData(const Shape& shape)
      : slices_(shape.slices),
        inputs_asked_(static_cast<std::size_t>(shape.micro_batches * shape.slices)),
        targets_asked_(inputs_asked_.size()) {}

  TensorList inputs(const Unit& unit) override { return once(inputs_asked_, unit, 0); }
  TensorList targets(const Unit& unit) override { return once(targets_asked_, unit, 1); }

  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    const std::int64_t before = unit.micro_batch.value;
    return 2 * before + before / 2;
  }

  /// Forgets what was asked for; before every step.
  void rewind() {
    for (auto& asked : inputs_asked_) asked = false;
    for (auto& asked : targets_asked_) asked = false;
  }

 private:
  TensorList once(std::vector<std::atomic<bool>>& asked, const Unit& unit, std::uint32_t kind) {
    const int number = unit.micro_batch.value * slices_ + unit.slice.value;
    if (asked[static_cast<std::size_t>(number)].exchange(true))
      throw Error("a unit was asked for twice");
    return TensorList(make(unit, number, kind));
  }

  static Tensor make(const Unit& unit, int number, std::uint32_t kind) {
    Tensor tensor(DType::F32, {2 + unit.micro_batch.value % 2, kWidth});
    const double scale = std::pow(10.0, unit.micro_batch.value % 4 - 1);
    for (std::size_t i = 0; i < tensor.as<float>().size(); ++i)
      tensor.as<float>()[i] = static_cast<float>(
          scale *
          (random_uniform({.seed = 5, .sample = static_cast<std::uint32_t>(number), .layer = kind},
                          static_cast<std::uint32_t>(i)) -
           0.4));
    return tensor;
  }

  int slices_;
  std::vector<std::atomic<bool>> inputs_asked_;  // from several threads, each unit from one
  std::vector<std::atomic<bool>> targets_asked_;
};

/// What a step computed, to be compared bit by bit.
struct Outcome {
  std::vector<std::vector<float>> gradients;  ///< [replica * stages + stage]
  std::vector<double> losses;                 ///< by unit
  double loss = 0;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// The bodies of a program, hosted; and its data.
class ToyPipeline {
 public:
  explicit ToyPipeline(const Shape& shape) : data(shape), shape_(shape) {
    for (int replica = 0; replica < shape.replicas(); ++replica)
      for (int stage = 0; stage < shape.stages(); ++stage) {
        bodies_.push_back(
            std::make_unique<ToyStage>(Stage{stage}, stage == 0, stage + 1 == shape.stages()));
        hosted.push_back({Replica{replica}, Stage{stage}, bodies_.back().get()});
      }
  }

  void disturb(const Disturbance& disturbance) {
    for (const auto& body : bodies_) body->disturbance = disturbance;
  }

  void zero_gradients() {
    for (const auto& body : bodies_) body->parameters()[0]->gradient.fill_zero();
  }

  [[nodiscard]] std::vector<float> gradient(int replica, int stage) const {
    const auto body = static_cast<std::size_t>(replica * shape_.stages() + stage);
    const auto values = bodies_[body]->parameters()[0]->gradient.as<float>();
    return {values.begin(), values.end()};
  }

  [[nodiscard]] std::size_t stashed_units() const {
    std::size_t count = 0;
    for (const auto& body : bodies_) count += body->stashed_units();
    return count;
  }

  static StepSettings settings() {
    StepSettings settings;
    settings.step = 7;
    settings.loss_scale = 1.0 / 3;
    settings.deadline = std::chrono::seconds(20);
    return settings;
  }

  /// One step from zero gradients.
  Outcome step(Executor& executor) {
    data.rewind();
    zero_gradients();
    return outcome_of(executor.run(data, settings()));
  }

  /// The same without scheduler or executor: micro-batch after micro-batch, slices forwards in
  /// ascending and backwards in descending order.
  Outcome plain_loop() {
    StepResult result = plain_start();
    for (int i = 0; i < shape_.micro_batches; ++i) plain_micro_batch(i, result);
    return outcome_of(result);
  }

  /// Of every micro-batch alone: the gradients that it adds.
  std::vector<std::vector<std::vector<float>>> plain_leaves() {
    StepResult result = plain_start();
    std::vector<std::vector<std::vector<float>>> leaves;
    for (int i = 0; i < shape_.micro_batches; ++i) {
      zero_gradients();
      plain_micro_batch(i, result);
      leaves.push_back(outcome_of(result).gradients);
    }
    return leaves;
  }

  ToyData data;
  std::vector<HostedStage> hosted;

 private:
  StepResult plain_start() {
    data.rewind();
    zero_gradients();
    for (const auto& body : bodies_) body->reserve(shape_.micro_batches, shape_.slices);
    return {};
  }

  void plain_micro_batch(int number, StepResult& result) {
    TensorPool pool;
    StashMeter meter;
    std::vector<TensorList> targets;
    for (int k = 0; k < shape_.slices; ++k) {
      const Unit unit{MicroBatch{number}, Slice{k}};
      targets.push_back(data.targets(unit));
      LossSum& loss = result.unit_losses.emplace_back();
      TensorList value = data.inputs(unit);
      PassContext context = plain_context(unit, pool, meter);
      context.targets = &targets.back();
      context.loss = &loss;
      for (int s = 0; s < shape_.stages(); ++s)
        value = bodies_[static_cast<std::size_t>(s)]->forward(context, std::move(value));
      result.loss += loss;
    }
    for (int k = shape_.slices - 1; k >= 0; --k) {
      PassContext context = plain_context({MicroBatch{number}, Slice{k}}, pool, meter);
      context.targets = &targets[static_cast<std::size_t>(k)];
      TensorList value;
      for (int s = shape_.stages() - 1; s >= 0; --s)
        value = bodies_[static_cast<std::size_t>(s)]->backward(context, std::move(value));
    }
  }

  static PassContext plain_context(const Unit& unit, TensorPool& pool, StashMeter& meter) {
    PassContext context;
    context.micro_batch = unit.micro_batch;
    context.slice = unit.slice;
    context.loss_scale = settings().loss_scale;
    context.pool = &pool;
    context.meter = &meter;
    return context;
  }

  Outcome outcome_of(const StepResult& result) {
    Outcome outcome;
    for (int replica = 0; replica < shape_.replicas(); ++replica)
      for (int stage = 0; stage < shape_.stages(); ++stage)
        outcome.gradients.push_back(gradient(replica, stage));
    for (const LossSum& loss : result.unit_losses) outcome.losses.push_back(loss.sum);
    outcome.loss = result.loss.sum;
    return outcome;
  }

  Shape shape_;
  std::vector<std::unique_ptr<ToyStage>> bodies_;
};

}  // namespace millrace::testing_run
