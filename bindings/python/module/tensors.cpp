// Tensors as numpy arrays and back; see tensors.hpp.
#include "module/tensors.hpp"

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "millrace/core/error.hpp"
#include "module/dlpack.hpp"
#include "module/let_go.hpp"

namespace millrace::python {

namespace {

struct Kind {
  DType dtype;
  const char* format;
};

constexpr std::array<Kind, 6> kKinds = {{{DType::F32, "f4"},
                                         {DType::F16, "f2"},
                                         {DType::F64, "f8"},
                                         {DType::I32, "i4"},
                                         {DType::I64, "i8"},
                                         {DType::U8, "u1"}}};

py::dtype numpy_type(DType dtype) {
  for (const Kind& kind : kKinds)
    if (kind.dtype == dtype) return py::dtype(kind.format);
  throw InvalidArgument(std::string("a tensor is of ") + name_of(dtype) +
                        ", which numpy does not have; a stage with tensors = \"dlpack\" takes it");
}

DType dtype_of(const py::array& array, const char* whose) {
  for (const Kind& kind : kKinds)
    if (array.dtype().is(py::dtype(kind.format)) || array.dtype().equal(py::dtype(kind.format)))
      return kind.dtype;
  throw InvalidArgument(std::string(whose) + " has an array of " +
                        std::string(py::str(array.dtype())) +
                        "; tensors are float32, float16, float64, int32, int64 or uint8");
}

Dims dims_of(const py::array& array) {
  require(array.ndim() <= static_cast<py::ssize_t>(Dims::kMax), "a tensor has at most 6 extents");
  std::array<std::int64_t, Dims::kMax> extents{};
  for (py::ssize_t i = 0; i < array.ndim(); ++i)
    extents[static_cast<std::size_t>(i)] = array.shape(i);
  return Dims(
      std::span<const std::int64_t>(extents.data(), static_cast<std::size_t>(array.ndim())));
}

void release_array(void*, std::size_t, void* owner) noexcept {
  let_go(owner, [](void* array) { Py_DECREF(static_cast<PyObject*>(array)); });
}

/// A tensor over part of an array's memory, which keeps the array.
Tensor keeping(const py::array& array, DType dtype, const Dims& dims, const void* data) {
  py::object owner = array;
  return {dtype, dims, const_cast<void*>(data), &release_array, owner.release().ptr()};
}

Tensor tensor_of(const py::handle& value, const char* whose) {
  if (value.is_none()) return {};
  const bool is_array = py::isinstance<py::array>(value);
  if (!is_array && speaks_dlpack(value)) return from_dlpack(value, whose);
  require(is_array,
          std::string(whose) + " returned a " +
              std::string(py::str(py::type::handle_of(value).attr("__name__"))) +
              "; expected arrays of numpy or tensors with __dlpack__");
  const auto array = py::array::ensure(
      value, static_cast<int>(py::array::c_style) | py::detail::npy_api::NPY_ARRAY_ALIGNED_);
  if (!array) throw py::error_already_set();
  return keeping(array, dtype_of(array, whose), dims_of(array), array.data());
}

/// The tensor's memory as an array that keeps `owner`, or a copy without one. Strides are given:
/// pybind11 before 2.12 reads the size of an element where numpy 2 no longer has it.
py::array array_over(const Tensor& tensor, const py::handle& owner = {}) {
  const std::vector<py::ssize_t> shape(tensor.dims().begin(), tensor.dims().end());
  const auto strides =
      py::detail::c_strides(shape, static_cast<py::ssize_t>(size_of(tensor.dtype())));
  return {numpy_type(tensor.dtype()), shape, strides, tensor.data(), owner};
}

py::object copied(const Tensor& tensor) {
  if (!tensor) return py::none();
  return array_over(tensor);
}

}  // namespace

py::object to_array(Tensor tensor) {
  if (!tensor || tensor.margins() == Margins::Whole) return copied(tensor);
  auto kept = std::make_unique<Tensor>(std::move(tensor));
  const py::capsule owner(kept.get(), [](void* it) { delete static_cast<Tensor*>(it); });
  const Tensor& held = *kept.release();
  return array_over(held, owner);
}

Handed handed_as(const std::string& word) {
  if (word == "numpy") return Handed::Numpy;
  require(word == "dlpack", "tensors is '" + word + "'; known are numpy and dlpack");
  return Handed::Dlpack;
}

py::object handed_copy(const Tensor& tensor, Handed as) {
  return as == Handed::Numpy ? copied(tensor) : copied_to_dlpack(tensor);
}

py::tuple arguments_of(const py::object& first, TensorList tensors, Handed as) {
  py::tuple arguments(tensors.size() + 1);
  arguments[0] = first;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    arguments[i + 1] =
        as == Handed::Numpy ? to_array(std::move(tensors[i])) : to_dlpack(std::move(tensors[i]));
  return arguments;
}

py::tuple copied_arguments_of(const py::object& first, const TensorList& tensors, Handed as) {
  py::tuple arguments(tensors.size() + 1);
  arguments[0] = first;
  for (std::size_t i = 0; i < tensors.size(); ++i) arguments[i + 1] = handed_copy(tensors[i], as);
  return arguments;
}

TensorList tensors_of(const py::object& returned, const char* whose) {
  TensorList tensors;
  if (returned.is_none()) return tensors;
  if (py::isinstance<py::tuple>(returned) || py::isinstance<py::list>(returned))
    for (const py::handle value : returned) tensors.push_back(tensor_of(value, whose));
  else
    tensors.push_back(tensor_of(returned, whose));
  return tensors;
}

Tensor rows_of(const py::array& array, py::ssize_t first, py::ssize_t count) {
  Dims dims = dims_of(array);
  *dims.begin() = count;
  const auto* data = static_cast<const std::byte*>(array.data()) + first * array.strides(0);
  return keeping(array, dtype_of(array, "a mini-batch"), dims, data);
}

Tensor borrowed(py::array_t<float>& array) {
  return {DType::F32, dims_of(array), array.mutable_data(), nullptr, nullptr};
}

}  // namespace millrace::python
