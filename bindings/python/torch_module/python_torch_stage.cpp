// A stage over Python's own module; see python_torch_stage.hpp.
#include "torch_module/python_torch_stage.hpp"

#include <map>
#include <optional>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/nn/module.h>

#include "millrace/core/error.hpp"
#include "millrace/torch/pass.hpp"
#include "millrace/torch/stage.hpp"
#include "module/python_failure.hpp"

namespace millrace::python {

namespace {

/// Kept by C++, which lets go of it under the lock.
std::shared_ptr<PyObject> kept(const py::object& object) {
  return {py::object(object).release().ptr(), [](PyObject* held) {
            const py::gil_scoped_acquire locked;
            Py_DECREF(held);
          }};
}

/// `call` with the lock; what Python raises becomes a PythonFailure.
template <class Call>
auto in_python(const Call& call) {
  const py::gil_scoped_acquire locked;
  try {
    return call();
  } catch (const py::error_already_set& raised) {
    throw PythonFailure(raised);
  }
}

/// Numpy has no bf16: what a prediction hands out is f32.
void make_readable(std::vector<at::Tensor>& outputs) {
  const PassContext* pass = TorchPass::current();
  if (pass->training || pass->loss == nullptr || pass->targets != nullptr) return;
  for (at::Tensor& output : outputs)
    if (output.scalar_type() == at::kBFloat16) output = output.to(at::kFloat);
}

TorchForward forward_of(const py::object& function) {
  return [function = kept(function)](const std::vector<at::Tensor>& inputs) {
    auto outputs = in_python([&] {
      py::tuple arguments(inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i) arguments[i] = py::cast(inputs[i]);
      const auto call = py::reinterpret_borrow<py::object>(function.get());
      return call(*arguments).cast<std::vector<at::Tensor>>();
    });
    make_readable(outputs);
    return outputs;
  };
}

TorchLoss loss_of(const py::object& function) {
  if (function.is_none()) return {};
  return [function = kept(function)](const std::vector<at::Tensor>& outputs,
                                     const std::vector<at::Tensor>& targets) {
    return in_python([&] {
      const auto call = py::reinterpret_borrow<py::object>(function.get());
      const py::tuple said = call(outputs, targets);
      return TorchLossSum{said[0].cast<at::Tensor>(),
                          said[1].cast<double>(),
                          said[2].cast<std::int64_t>(),
                          said[3].cast<std::int64_t>()};
    });
  };
}

/// Modules inside each other whose parameters and buffers are the given tensors. Whether they train
/// is told to it, and to Python's module by whoever made the stage.
class Mirror : public torch::nn::Module {
 public:
  Mirror() = default;

  void add(const NamedTensors& parameters, const NamedTensors& buffers) {
    for (const auto& [name, tensor] : parameters) {
      const auto [owner, own] = owner_of(name);
      owner->register_parameter(own, tensor, tensor.requires_grad());
    }
    for (const auto& [name, tensor] : buffers) {
      const auto [owner, own] = owner_of(name);
      owner->register_buffer(own, tensor);
    }
  }

 private:
  std::pair<Mirror*, std::string> owner_of(const std::string& name) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos) return {this, name};
    std::shared_ptr<Mirror>& inner = inner_[name.substr(0, dot)];
    if (inner == nullptr) inner = register_module(name.substr(0, dot), std::make_shared<Mirror>());
    return inner->owner_of(name.substr(dot + 1));
  }

  std::map<std::string, std::shared_ptr<Mirror>> inner_;
};

/// PyTorch's engine leaves an exception of Python in the thread's state of the interpreter, which
/// threads of executors have only while they hold on to it.
template <class Pass>
auto passed(const Pass& pass) {
  const py::gil_scoped_acquire locked;
  try {
    const py::gil_scoped_release unlocked;
    return pass();
  } catch (const std::exception&) {
    if (PyErr_Occurred() != nullptr) throw PythonFailure(py::error_already_set());
    throw;
  }
}

/// Passes of a TorchStage, with a place for what Python raises below them.
class PythonTorchStage final : public StageBody {
 public:
  PythonTorchStage(std::shared_ptr<Mirror> mirror,
                   TorchForward forward,
                   TorchStageSettings settings)
      : stage_(std::move(mirror), std::move(forward), std::move(settings)) {}

  TensorList forward(const PassContext& context, TensorList inputs) override {
    return passed([&] { return stage_.forward(context, std::move(inputs)); });
  }
  TensorList backward(const PassContext& context, TensorList gradients) override {
    return passed([&] { return stage_.backward(context, std::move(gradients)); });
  }
  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    return passed([&] { return stage_.backward_input(context, std::move(gradients)); });
  }
  void backward_weight(const PassContext& context) override {
    passed([&] { stage_.backward_weight(context); });
  }
  void recompute(const PassContext& context) override {
    passed([&] { stage_.recompute(context); });
  }
  [[nodiscard]] bool takes_gradient_per_use() const override {
    return stage_.takes_gradient_per_use();
  }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return stage_.parameters(); }
  [[nodiscard]] std::optional<double> loss_weight(const TensorList& targets) const override {
    return stage_.loss_weight(targets);
  }
  [[nodiscard]] StashBytes stash_bytes(const UnitSize& size, bool recompute) const override {
    return stage_.stash_bytes(size, recompute);
  }
  void reserve(int micro_batches, int slices) override { stage_.reserve(micro_batches, slices); }
  [[nodiscard]] std::size_t stashed_units() const override { return stage_.stashed_units(); }
  void abandon_step() noexcept override { stage_.abandon_step(); }

 private:
  TorchStage stage_;
};

}  // namespace

std::unique_ptr<StageBody> made_torch_stage(const TorchStageParts& parts) {
  auto mirror = std::make_shared<Mirror>();
  mirror->add(parts.parameters, parts.buffers);
  TorchStageSettings settings{
      .first = parts.number == 0,
      .loss = loss_of(parts.loss),
      .random = parts.seeds ? TorchRandom::SeedEachUnit : TorchRandom::Refuse,
      .number = parts.number,
      .precision = parts.precision};
  return std::make_unique<PythonTorchStage>(
      std::move(mirror), forward_of(parts.forward), std::move(settings));
}

}  // namespace millrace::python
