// Stages that another compiled module has made: they go through Python as an object and do not call
// it.
#pragma once

#include <memory>
#include <pybind11/pybind11.h>

#include "millrace/stages/stage.hpp"

namespace millrace::python {

namespace py = pybind11;

/// A capsule that owns `body`: what the method `__millrace_stage__` of a native stage returns.
[[nodiscard]] py::capsule capsule_of(std::unique_ptr<StageBody> body);

/// The body of an object with that method; null for any other. Throws InvalidArgument when it has
/// been taken before. Needs the interpreter's lock.
[[nodiscard]] std::unique_ptr<StageBody> native_body(const py::handle& stage);

}  // namespace millrace::python
