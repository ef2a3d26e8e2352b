// A body in a capsule; see native_stage.hpp.
#include "module/native_stage.hpp"

#include <utility>

#include "millrace/core/error.hpp"

namespace millrace::python {

namespace {

constexpr const char* kCapsule = "millrace.StageBody";
constexpr const char* kMethod = "__millrace_stage__";

using Owner = std::unique_ptr<StageBody>;

}  // namespace

py::capsule capsule_of(std::unique_ptr<StageBody> body) {
  auto owner = std::make_unique<Owner>(std::move(body));
  return py::capsule(owner.release(), kCapsule, [](PyObject* capsule) {
    delete static_cast<Owner*>(PyCapsule_GetPointer(capsule, kCapsule));
  });
}

std::unique_ptr<StageBody> native_body(const py::handle& stage) {
  if (!py::hasattr(stage, kMethod)) return nullptr;
  const py::object capsule = stage.attr(kMethod)();
  auto* const owner = static_cast<Owner*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  if (owner == nullptr) throw py::error_already_set();
  require(*owner != nullptr, "this stage belongs to another trainer; make one for each");
  return std::move(*owner);
}

}  // namespace millrace::python
