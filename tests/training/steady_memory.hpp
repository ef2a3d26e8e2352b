// Trains a transformer for many steps, some of which fail, and says what of memory is left behind:
// counted at operator new, and as the system sees the process.
#pragma once

#include <chrono>
#include <cstddef>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/run/executor.hpp"
#include "support/allocation_counter.hpp"
#include "support/resident_bytes.hpp"
#include "support/test_options.hpp"
#include "training/gpt_matrix.hpp"

namespace millrace::testing_training {

/// A mini-batch whose targets of one micro-batch cannot be had while `fails`.
class FailingBatch final : public StepData {
 public:
  explicit FailingBatch(Batch& batch) : batch_(batch) {}

  TensorList inputs(const Unit& unit) override { return batch_.inputs(unit); }
  TensorList targets(const Unit& unit) override {
    if (fails && unit.micro_batch.value == 1) throw std::runtime_error("the targets are gone");
    return batch_.targets(unit);
  }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return batch_.first_sample(unit);
  }
  [[nodiscard]] std::int64_t first_position(const Unit& unit) const override {
    return batch_.first_position(unit);
  }

  bool fails = false;

 private:
  Batch& batch_;
};

/// Two micro-batches of two sequences through two stages.
class SteadyTraining {
 public:
  static constexpr int kMicroBatches = 2;
  static constexpr int kSequences = 4;

  explicit SteadyTraining(const std::string& executor)
      : batch_of_([] {
          Batch batch;
          batch.fill(gpt_verses(), drawn_windows(gpt_verses(), kSequences, 1, 0), kMicroBatches);
          return batch;
        }()),
        data_(batch_of_),
        trainer_(trainer_of(model(), options(executor))) {}

  static ModelSpec model() {
    ModelSpec model =
        parse_model("gpt:layers=1,d=16,heads=2,context=16,dropout=0.1,tied=yes,vocabulary=" +
                    std::to_string(gpt_verses().classes));
    model.precision = DType::BF16;
    return model;
  }

  void step() { trainer_.step(data_, kWeight); }

  /// A step that throws; behind it no stage keeps anything.
  void failing_step() {
    data_.fails = true;
    EXPECT_THROW(trainer_.step(data_, kWeight), StepError);
    data_.fails = false;
    for (const HostedStage& hosted : trainer_.stages()) EXPECT_EQ(hosted.body->stashed_units(), 0U);
  }

  /// How many tensors the passes of a step make, whatever becomes of them.
  static std::size_t tensors_of_a_step() {
    const ModelSpec spec = model();
    const auto stages = build_stages(spec, std::vector<int>{0, spec.layer_count()}, 1);
    stages.front()->reserve(kMicroBatches, 1);
    Batch batch;
    batch.fill(gpt_verses(), drawn_windows(gpt_verses(), kSequences, 1, 0), kMicroBatches);
    const std::size_t before = test::aligned_allocations();
    for (int i = 0; i < kMicroBatches; ++i) {
      const Unit unit{MicroBatch{i}, Slice{0}};
      const TensorList targets = batch.targets(unit);
      LossSum loss;
      PassContext context;  // without a pool every tensor asks for memory
      context.micro_batch = unit.micro_batch;
      context.first_sample = batch.first_sample(unit);
      context.targets = &targets;
      context.loss = &loss;
      stages.front()->forward(context, batch.inputs(unit));
      stages.front()->backward(context, {});
    }
    return test::aligned_allocations() - before;
  }

 private:
  static constexpr double kWeight = kSequences * 16;

  static TestOptions options(const std::string& executor) {
    TestOptions options;
    options.pipeline.schedule = "zb-h1";
    options.pipeline.shape.ranks = 2;
    options.pipeline.shape.micro_batches = kMicroBatches;
    options.run.executor = executor;
    options.run.executor_options.inline_below = std::chrono::seconds(0);
    options.step.clip_norm = 1;
    options.step.learning_rate.base = 1e-4;
    return options;
  }

  Batch batch_of_;
  FailingBatch data_;
  Trainer trainer_;
};

/// What a training has of the heap between two steps.
struct Memory {
  std::size_t blocks = test::blocks_alive();
  std::size_t tensors_made = test::aligned_allocations();
  std::size_t resident = test::resident_bytes();
};

/// Trains `steps` steps, with one that fails after every tenth. What may be left behind in the
/// second half:
/// - sequential: nothing, not a block, since every step asks for the same in the same order;
/// - where threads race: fewer blocks than tensors are made in two steps. At any moment of a step
/// no
///   more tensors are alive than it makes in all, and pools keep what they once had; so however
///   threads race, all steps together take at most that from the system, and other containers
///   (lists of free blocks, mailboxes) at most as much again. A tensor lost in every step would
///   take a block in every step, and the second half has more steps than that.
inline std::ptrdiff_t expect_steady(const std::string& executor, int steps) {
  const std::size_t most = 2 * SteadyTraining::tensors_of_a_step();
  EXPECT_GT(static_cast<std::size_t>(steps) / 2, most);
  const std::size_t before = test::aligned_blocks_alive();
  std::ptrdiff_t growth = 0;
  {
    SteadyTraining training(executor);
    const auto train = [&](int count) {
      for (int i = 0; i < count; ++i) {
        training.step();
        if (i % 10 == 0) training.failing_step();
      }
    };
    train(steps / 2);
    const Memory half;
    train(steps - steps / 2);
    const Memory end;
    const std::size_t allowed = executor == "sequential" ? 0 : most;
    EXPECT_LE(end.blocks, half.blocks + allowed);
    EXPECT_LE(end.tensors_made, half.tensors_made + allowed);
    growth = static_cast<std::ptrdiff_t>(end.resident - half.resident);
    std::cout << executor << ": the second half of " << steps << " steps took "
              << end.tensors_made - half.tensors_made << " blocks for tensors, of at most " << most
              << "; the process has " << end.resident << " bytes, " << growth << " more\n";
  }
  EXPECT_EQ(test::aligned_blocks_alive(), before);
  return growth;
}

}  // namespace millrace::testing_training
