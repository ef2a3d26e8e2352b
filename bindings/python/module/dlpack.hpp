// Tensors by DLPack's protocol (https://dmlc.github.io/dlpack): what PyTorch, JAX and others read
// and write without a copy, bf16 too, which numpy does not have.
#pragma once

#include <memory>
#include <pybind11/pybind11.h>

#include "millrace/core/tensor.hpp"

namespace millrace::python {

namespace py = pybind11;

/// millrace.Tensor: a tensor that others take through `__dlpack__`, as often as they like.
struct DlpackTensor {
  std::shared_ptr<Tensor> tensor;
};

/// A millrace.Tensor over the tensor's memory, which it and all who took it keep; of memory of the
/// library's pool a copy, because Python may hold on to it. None for an empty tensor. Needs the
/// interpreter's lock, as all of these.
[[nodiscard]] py::object to_dlpack(Tensor tensor);

/// A copy, of a tensor that stays where it is.
[[nodiscard]] py::object copied_to_dlpack(const Tensor& tensor);

[[nodiscard]] bool speaks_dlpack(const py::handle& value);

/// A tensor over the memory of an object with `__dlpack__`, which it keeps; a copy where that is
/// not in C order. What autograd watches is detached first. `whose` opens the sentence of what is
/// refused: another device than the CPU, another dtype than ours.
[[nodiscard]] Tensor from_dlpack(const py::handle& value, const char* whose);

}  // namespace millrace::python
