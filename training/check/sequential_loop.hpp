// Gradient accumulation as a textbook has it: micro-batch after micro-batch through all stages,
// there and back, then one update. No plan, no executor, no threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/training/loader.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/trainer_options.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// Bits of tensors by name.
using TensorsByName = std::map<std::string, std::vector<float>>;

/// What one step left behind.
struct LoopStep {
  LossSum loss;
  TensorsByName gradients;  ///< complete, without the loss scale, before clipping
};

/// Thread-safety: externally synchronised.
class SequentialLoop {
 public:
  /// `bodies` are the stages of a chain.
  SequentialLoop(std::vector<std::unique_ptr<StageBody>> bodies,
                 const StepOptions& options,
                 DType precision,
                 const Batch& batch);

  /// Over all of the batch.
  LoopStep step(Batch& batch);

  [[nodiscard]] const TrainingState& state() const { return state_; }

 private:
  void run(Batch& batch, const Unit& unit, double loss_scale, LossSum& loss, bool forward);
  [[nodiscard]] double weight_of(Batch& batch) const;
  [[nodiscard]] std::vector<double> squares() const;
  void unscale(double scale);
  void update();

  StepOptions options_;
  std::vector<std::unique_ptr<StageBody>> bodies_;
  std::unique_ptr<Optimizer> made_;
  const Optimizer& optimizer_;
  LossScaleOptions loss_scale_;
  ProcessGroup alone_;
  TrainingState state_;
};

}  // namespace millrace
