// References to Python's objects as tensors, and the stage that passes them on.
#include "module/object_stage.hpp"

#include <utility>

#include "module/let_go.hpp"
#include "module/python_failure.hpp"

namespace millrace::python {

namespace {

constexpr ReferenceCount kPython{
    .retain =
        [](void* object) noexcept {
          const py::gil_scoped_acquire locked;
          Py_INCREF(static_cast<PyObject*>(object));
        },
    .release =
        [](void* object) noexcept {
          let_go(object, [](void* it) { Py_DECREF(static_cast<PyObject*>(it)); });
        }};

int number_of(const PassContext& context) {
  return context.micro_batch.value * context.slices + context.slice.value;
}

/// (stage, first..., objects...)
template <class... First>
py::tuple arguments_of(const py::object& stage, const TensorList& tensors, const First&... first) {
  py::tuple arguments(1 + sizeof...(first) + tensors.size());
  std::size_t at = 0;
  arguments[at++] = stage;
  ((arguments[at++] = py::cast(first)), ...);
  for (std::size_t i = 0; i < tensors.size(); ++i) arguments[at++] = object_of(tensors[i]);
  return arguments;
}

/// Of methods; they stay as long as the process.
struct Names {
  PyObject* forward = PyUnicode_InternFromString("forward");
  PyObject* backward = PyUnicode_InternFromString("backward");
  PyObject* backward_input = PyUnicode_InternFromString("backward_input");
  PyObject* backward_weight = PyUnicode_InternFromString("backward_weight");
  PyObject* recompute = PyUnicode_InternFromString("recompute");
};

const Names& names() {
  static const Names all;
  return all;
}

/// The method of the first argument, by the others.
py::object called(PyObject* method, const py::tuple& arguments) {
  PyObject* const returned = PyObject_VectorcallMethod(
      method, &PyTuple_GET_ITEM(arguments.ptr(), 0), arguments.size(), nullptr);
  if (returned == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(returned);
}

/// What the method returned, as references.
TensorList tensors_from(PyObject* method, const py::tuple& arguments) {
  const py::tuple returned = called(method, arguments);
  TensorList tensors;
  for (const py::handle object : returned)
    tensors.push_back(reference_to(py::reinterpret_borrow<py::object>(object)));
  return tensors;
}

/// call() with the lock; what Python raises becomes a PythonFailure.
template <class Call>
auto in_python(const Call& call) {
  const py::gil_scoped_acquire locked;
  let_go_of_waiting();
  try {
    return call();
  } catch (py::error_already_set& raised) {
    throw PythonFailure(raised);
  }
}

}  // namespace

Tensor reference_to(const py::object& object) {
  if (object.is_none()) return {};
  return Tensor::reference(object.inc_ref().ptr(), 1, kPython);
}

py::object object_of(const Tensor& tensor) {
  if (!tensor) return py::none();
  require(tensor.is_reference(), "this stage takes objects of Python, and was given a tensor");
  return py::reinterpret_borrow<py::object>(
      static_cast<PyObject*>(const_cast<void*>(tensor.data())));
}

ObjectStage::ObjectStage(py::object stage)
    : stage_(std::move(stage)), splits_(stage_.attr("splits").cast<bool>()) {}

ObjectStage::~ObjectStage() {
  const py::gil_scoped_acquire locked;
  stage_ = py::object();
}

TensorList ObjectStage::forward(const PassContext& context, TensorList inputs) {
  return in_python([&] {
    const py::tuple arguments =
        arguments_of(stage_, inputs, number_of(context), context.recompute_later);
    inputs.clear();
    return tensors_from(names().forward, arguments);
  });
}

TensorList ObjectStage::backward_input(const PassContext& context, TensorList gradients) {
  return in_python([&] {
    return tensors_from(names().backward_input,
                        arguments_of(stage_, gradients, number_of(context)));
  });
}

void ObjectStage::backward_weight(const PassContext& context) {
  in_python([&] { called(names().backward_weight, arguments_of(stage_, {}, number_of(context))); });
}

TensorList ObjectStage::backward(const PassContext& context, TensorList gradients) {
  return in_python([&] {
    return tensors_from(names().backward, arguments_of(stage_, gradients, number_of(context)));
  });
}

void ObjectStage::recompute(const PassContext& context) {
  in_python([&] { called(names().recompute, arguments_of(stage_, {}, number_of(context))); });
}

void ObjectStage::abandon_step() noexcept {
  const py::gil_scoped_acquire locked;
  try {
    stage_.attr("abandon")();
  } catch (py::error_already_set& raised) {
    raised.discard_as_unraisable("millrace: abandon()");
  }
}

}  // namespace millrace::python
