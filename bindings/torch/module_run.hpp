// One run of a stage's module over one unit: the state of the thread that it needs around it, and
// what it must not do.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/torch/stage.hpp"
#include "torch/module_parameters.hpp"

namespace millrace::on_torch {

/// What came of it.
struct Outcome {
  std::vector<at::Tensor> outputs;
  TorchLossSum loss;  ///< where the stage has a loss and there were targets; else undefined
};

/// Thread-safety: externally synchronised.
class ModuleRun {
 public:
  ModuleRun(std::shared_ptr<torch::nn::Module> module,
            TorchForward forward,
            TorchStageSettings settings);

  /// With a graph if that is asked for, which then begins at the inputs. With `again` the module's
  /// buffers are afterwards as they were. Throws InvalidArgument for what TorchStage refuses.
  Outcome operator()(const PassContext& context,
                     std::vector<at::Tensor>& inputs,
                     const std::vector<at::Tensor>& targets,
                     bool graph,
                     bool again);

  [[nodiscard]] ModuleParameters& parameters() { return parameters_; }
  [[nodiscard]] const ModuleParameters& parameters() const { return parameters_; }
  [[nodiscard]] const TorchStageSettings& settings() const { return settings_; }

 private:
  Outcome run(const PassContext& context,
              const std::vector<at::Tensor>& inputs,
              const std::vector<at::Tensor>& targets);
  Outcome run_watched(const PassContext& context,
                      const std::vector<at::Tensor>& inputs,
                      const std::vector<at::Tensor>& targets);

  void require_announced(double weight, const std::vector<at::Tensor>& targets) const;

  std::shared_ptr<torch::nn::Module> module_;  // the user's, too
  TorchForward forward_;
  TorchStageSettings settings_;
  ModuleParameters parameters_;
  std::vector<at::Tensor> buffers_;
  std::optional<std::uint64_t> first_step_;
  std::optional<std::uint64_t> checked_step_;
  bool draws_ = false;
};

}  // namespace millrace::on_torch
