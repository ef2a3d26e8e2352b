// A stage whose tensors are Python's own objects: they pass between stages as references, on
// whatever device they are. millrace.torch is made of such stages.
#pragma once

#include <memory>
#include <pybind11/pybind11.h>

#include "millrace/stages/stage.hpp"
#include "millrace/transport/endpoint.hpp"

namespace millrace::python {

namespace py = pybind11;

/// A reference to the object; an empty tensor for None. Needs the interpreter's lock.
[[nodiscard]] Tensor reference_to(const py::object& object);
/// The object, or None. Needs the lock.
[[nodiscard]] py::object object_of(const Tensor& tensor);

/// Calls the methods of a Python object, where `unit` is micro_batch * slices + slice:
/// forward(unit, recomputes, *inputs) and backward_input(unit, *gradients) or backward(unit,
/// *gradients) return a tuple; backward_weight(unit), recompute(unit) and abandon() return None.
/// `splits` tells whether the object has the two halves of a backward pass. Inputs of the model,
/// targets, losses, predictions and parameters never pass through here. Thread-safety: as
/// StageBody.
class ObjectStage final : public StageBody {
 public:
  /// Needs the lock.
  explicit ObjectStage(py::object stage);
  ~ObjectStage() override;

  TensorList forward(const PassContext& context, TensorList inputs) override;
  TensorList backward_input(const PassContext& context, TensorList gradients) override;
  void backward_weight(const PassContext& context) override;
  TensorList backward(const PassContext& context, TensorList gradients) override;
  void recompute(const PassContext& context) override;
  [[nodiscard]] bool splits_backward() const override { return splits_; }
  [[nodiscard]] bool takes_gradient_per_use() const override { return true; }
  void abandon_step() noexcept override;

 private:
  py::object stage_;
  bool splits_;
};

/// Decorates an endpoint, which must outlive it. `pack(objects)` returns arrays of bytes for a
/// message, `unpack(arrays)` its objects; collectives pass as they are. It takes the interpreter's
/// lock by itself. Needs the lock.
[[nodiscard]] std::unique_ptr<Endpoint> object_endpoint(Endpoint& inner,
                                                        py::object pack,
                                                        py::object unpack);

}  // namespace millrace::python
