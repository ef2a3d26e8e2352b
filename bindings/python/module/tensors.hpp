// Tensors as numpy arrays and back, without a copy: an array keeps its tensor alive, a tensor its
// array.
#pragma once

#include <pybind11/numpy.h>

#include "millrace/core/tensor_list.hpp"

namespace millrace::python {

namespace py = pybind11;

/// An array over the tensor's memory, which it keeps; of memory that belongs to the library's pool
/// a copy, because Python may hold on to it. None for an empty tensor. Throws InvalidArgument for
/// bf16, which numpy does not have. Needs the interpreter's lock, as all of these.
[[nodiscard]] py::object to_array(Tensor tensor);

/// As what a stage is given tensors: its attribute `tensors`.
enum class Handed : std::uint8_t { Numpy, Dlpack };

/// "numpy", "dlpack"; throws InvalidArgument for any other word.
[[nodiscard]] Handed handed_as(const std::string& word);

/// A copy, of a tensor that stays where it is.
[[nodiscard]] py::object handed_copy(const Tensor& tensor, Handed as);

/// The tensors, as the arguments of a call behind `first`.
[[nodiscard]] py::tuple arguments_of(const py::object& first, TensorList tensors, Handed as);

/// The same of copies.
[[nodiscard]] py::tuple copied_arguments_of(const py::object& first,
                                            const TensorList& tensors,
                                            Handed as);

/// What a pass returned: an array or a tensor with `__dlpack__`, a tuple or list of such and Nones,
/// or None for no tensor. `whose` opens the sentence of what is refused.
[[nodiscard]] TensorList tensors_of(const py::object& returned, const char* whose);

/// A tensor of rows [first, first + count) of an array in C order, which it keeps alive.
[[nodiscard]] Tensor rows_of(const py::array& array, py::ssize_t first, py::ssize_t count);

/// A tensor over the memory of an array that somebody else keeps alive.
[[nodiscard]] Tensor borrowed(py::array_t<float>& array);

}  // namespace millrace::python
