// A stage whose module and loss are Python objects over PyTorch's tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <pybind11/pybind11.h>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/stage.hpp"

namespace millrace::python {

namespace py = pybind11;

/// Tensors under the names of a module, dots between the modules inside each other.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What such a stage is made of.
struct TorchStageParts {
  py::object forward;       ///< takes tensors, returns a list of tensors
  py::object loss;          ///< (outputs, targets) -> (sum, weight, correct, judged); None: no loss
  NamedTensors parameters;  ///< by global names
  NamedTensors buffers;
  std::uint32_t number = 0;  ///< of the stage
  DType precision = DType::F32;
  bool seeds = false;  ///< PyTorch's generator is seeded before each unit
};

/// A TorchStage over a mirror of the module: a module of C++ that holds the Python one's own
/// tensors. Passes run without the interpreter's lock but for what is Python's own: the calls of
/// `forward` and `loss`, functions of autograd, hooks. What Python raises in them, be it below
/// PyTorch's engine, is thrown as PythonFailure. Needs the lock to be made, not to be destroyed.
/// Throws what TorchStage throws.
[[nodiscard]] std::unique_ptr<StageBody> made_torch_stage(const TorchStageParts& parts);

/// The object that Python has of it until a trainer takes it.
struct TorchStageMaker {
  TorchStageParts parts;
};

}  // namespace millrace::python
