// DLPack's C structures and both ways of a tensor; see dlpack.hpp.
#include "module/dlpack.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "module/bindings.hpp"
#include "module/let_go.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

// As version 0.x has laid them out, and every later one still reads.
struct DLDevice {
  std::int32_t type;
  std::int32_t id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: C order
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};

constexpr std::int32_t kProcessor = 1;
constexpr const char* kFresh = "dltensor";
constexpr const char* kUsed = "used_dltensor";

struct Kind {
  DType dtype;
  std::uint8_t code;
};

constexpr std::array<Kind, 7> kDlpackKinds = {{{DType::F32, 2},
                                               {DType::F16, 2},
                                               {DType::BF16, 4},
                                               {DType::F64, 2},
                                               {DType::I32, 0},
                                               {DType::I64, 0},
                                               {DType::U8, 1}}};

DLDataType type_of(DType dtype) {
  for (const Kind& kind : kDlpackKinds)
    if (kind.dtype == dtype) return {kind.code, static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
  return {};
}

DType dtype_of(const DLDataType& type, const char* whose) {
  for (const Kind& kind : kDlpackKinds)
    if (kind.code == type.code && 8 * size_of(kind.dtype) == type.bits && type.lanes == 1)
      return kind.dtype;
  throw InvalidArgument(std::string(whose) + " has a tensor of " + std::to_string(type.bits) +
                        " bits and DLPack's kind " + std::to_string(type.code) +
                        "; tensors are float32, float16, bfloat16, float64, int32, int64 or uint8");
}

/// A tensor on its way out: whoever takes it calls the deleter in the end.
struct Handed {
  DLManagedTensor managed{};
  std::shared_ptr<Tensor> tensor;
  std::vector<std::int64_t> shape;
};

void forget(DLManagedTensor* managed) {
  delete static_cast<Handed*>(managed->context);
}

void destroy_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kFresh) == 0) return;  // somebody took it
  auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kFresh));
  managed->deleter(managed);
}

py::object capsule_of(const DlpackTensor& self) {
  auto handed = std::make_unique<Handed>();
  handed->tensor = self.tensor;
  handed->shape.assign(self.tensor->dims().begin(), self.tensor->dims().end());
  DLTensor& out = handed->managed.tensor;
  out = {.data = self.tensor->data(),
         .device = {kProcessor, 0},
         .ndim = static_cast<std::int32_t>(handed->shape.size()),
         .dtype = type_of(self.tensor->dtype()),
         .shape = handed->shape.data(),
         .strides = nullptr,
         .byte_offset = 0};
  handed->managed.context = handed.get();
  handed->managed.deleter = &forget;
  PyObject* capsule = PyCapsule_New(&handed->managed, kFresh, &destroy_capsule);
  if (capsule == nullptr) throw py::error_already_set();
  static_cast<void>(handed.release());
  return py::reinterpret_steal<py::object>(capsule);
}

struct GiveBack {
  void operator()(DLManagedTensor* managed) const noexcept {
    if (managed->deleter == nullptr) return;
    let_go(managed, [](void* what) {
      auto* const mine = static_cast<DLManagedTensor*>(what);
      mine->deleter(mine);
    });
  }
};

using Taken = std::unique_ptr<DLManagedTensor, GiveBack>;

void give_back(void*, std::size_t, void* owner) noexcept {
  GiveBack()(static_cast<DLManagedTensor*>(owner));
}

bool in_c_order(const DLTensor& given) {
  if (given.strides == nullptr) return true;
  std::int64_t stride = 1;
  for (std::int32_t i = given.ndim; i-- > 0;) {
    if (given.shape[i] != 1 && given.strides[i] != stride) return false;
    stride *= given.shape[i];
  }
  return true;
}

/// The elements below extent `axis`, one behind the other.
std::byte* copy_strided(const DLTensor& given,
                        std::int32_t axis,
                        const std::byte* from,
                        std::byte* to,
                        std::size_t element) {
  if (axis == given.ndim) {
    std::memcpy(to, from, element);
    return to + element;
  }
  const std::int64_t step = given.strides[axis] * static_cast<std::int64_t>(element);
  for (std::int64_t i = 0; i < given.shape[axis]; ++i)
    to = copy_strided(given, axis + 1, from + i * step, to, element);
  return to;
}

Dims dims_of(const DLTensor& given) {
  require(given.ndim <= static_cast<std::int32_t>(Dims::kMax), "a tensor has at most 6 extents");
  return Dims(std::span<const std::int64_t>(given.shape, static_cast<std::size_t>(given.ndim)));
}

/// Takes over what a capsule holds.
Taken taken(const py::object& capsule) {
  auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kFresh));
  if (managed == nullptr || PyCapsule_SetName(capsule.ptr(), kUsed) != 0)
    throw py::error_already_set();
  return Taken(managed);
}

py::object detached(const py::handle& value) {
  const bool watched =
      py::hasattr(value, "requires_grad") && value.attr("requires_grad").cast<bool>();
  return watched ? value.attr("detach")() : py::reinterpret_borrow<py::object>(value);
}

}  // namespace

py::object copied_to_dlpack(const Tensor& tensor) {
  if (!tensor) return py::none();
  return py::cast(DlpackTensor{std::make_shared<Tensor>(tensor.clone())});
}

py::object to_dlpack(Tensor tensor) {
  if (!tensor || tensor.margins() == Margins::Whole) return copied_to_dlpack(tensor);
  return py::cast(DlpackTensor{std::make_shared<Tensor>(std::move(tensor))});
}

bool speaks_dlpack(const py::handle& value) {
  return py::hasattr(value, "__dlpack__");
}

Tensor from_dlpack(const py::handle& value, const char* whose) {
  Taken managed = taken(detached(value).attr("__dlpack__")());
  const DLTensor& given = managed->tensor;
  require(given.device.type == kProcessor,
          std::string(whose) + " has a tensor of another device than the CPU");
  const DType dtype = dtype_of(given.dtype, whose);
  const Dims dims = dims_of(given);
  auto* const data = static_cast<std::byte*>(given.data) + given.byte_offset;
  if (given.data != nullptr && in_c_order(given))
    return {dtype, dims, data, &give_back, managed.release()};
  Tensor copy(dtype, dims);
  if (copy.bytes() > 0)
    copy_strided(given, 0, data, static_cast<std::byte*>(copy.data()), size_of(dtype));
  return copy;
}

void bind_dlpack(py::module_& module) {
  py::class_<DlpackTensor>(module,
                           "Tensor",
                           "What a stage with tensors = \"dlpack\" is given: torch.from_dlpack(it) "
                           "and its like take it without a copy.")
      .def_property_readonly(
          "shape",
          [](const DlpackTensor& self) {
            py::tuple shape(self.tensor->dims().size());
            for (std::size_t i = 0; i < shape.size(); ++i) shape[i] = self.tensor->dims()[i];
            return shape;
          },
          "Its extents.")
      .def_property_readonly(
          "dtype",
          [](const DlpackTensor& self) { return name_of(self.tensor->dtype()); },
          "\"f32\", \"bf16\", ...")
      .def(
          "__dlpack__",
          [](const DlpackTensor& self, const py::object&) { return capsule_of(self); },
          "stream"_a = py::none())
      .def("__dlpack_device__", [](const DlpackTensor&) { return py::make_tuple(kProcessor, 0); });
}

}  // namespace millrace::python
