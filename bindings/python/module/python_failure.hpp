// An exception of Python on its way through the library.
#pragma once

#include <memory>
#include <pybind11/pybind11.h>

#include "millrace/core/error.hpp"

namespace millrace::python {

namespace py = pybind11;

/// What Python raised inside a pass, as an exception whose text is the traceback.
class PythonFailure : public Error {
 public:
  /// Needs the interpreter's lock.
  explicit PythonFailure(const py::error_already_set& raised);

  /// The exception object. Needs the lock.
  [[nodiscard]] py::object raised() const;

 private:
  std::shared_ptr<PyObject> raised_;  // let go of under the lock, by whoever is last
};

}  // namespace millrace::python
