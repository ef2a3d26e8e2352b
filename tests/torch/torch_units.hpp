// Tensors of PyTorch as the data of a step.
#pragma once

#include <span>
#include <torch/torch.h>
#include <utility>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"

namespace millrace::testing_torch {

/// Of each micro-batch the inputs and the targets, borrowed by the step.
class TorchUnits final : public StepData {
 public:
  using Tensors = std::vector<torch::Tensor>;

  TorchUnits(std::vector<Tensors> inputs, std::vector<Tensors> targets)
      : inputs_(std::move(inputs)), targets_(std::move(targets)) {}

  TensorList inputs(const Unit& unit) override { return list(inputs_[unit.micro_batch.index()]); }
  TensorList targets(const Unit& unit) override { return list(targets_[unit.micro_batch.index()]); }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < unit.micro_batch.index(); ++i) first += inputs_[i][0].size(0);
    return first;
  }

 private:
  static TensorList list(const Tensors& tensors) {
    TensorList list;
    for (const torch::Tensor& tensor : tensors) {
      const DType dtype = tensor.scalar_type() == torch::kLong ? DType::I64 : DType::F32;
      const Dims dims(std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size()));
      list.push_back(Tensor(dtype, dims, tensor.data_ptr(), nullptr, nullptr));
    }
    return list;
  }

  std::vector<Tensors> inputs_, targets_;
};

}  // namespace millrace::testing_torch
