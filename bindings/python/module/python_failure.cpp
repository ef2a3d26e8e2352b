// An exception of Python as one of C++; see python_failure.hpp.
#include "module/python_failure.hpp"

#include <string>

namespace millrace::python {

namespace {

/// The whole traceback, as Python prints it.
std::string traceback_of(const py::error_already_set& raised) {
  const py::object lines =
      py::module_::import("traceback")
          .attr("format_exception")(raised.type(), raised.value(), raised.trace());
  std::string text = py::str("").attr("join")(lines).cast<std::string>();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

PythonFailure::PythonFailure(const py::error_already_set& raised)
    : Error(traceback_of(raised)),
      raised_(py::object(raised.value()).release().ptr(), [](PyObject* object) {
        const py::gil_scoped_acquire locked;
        Py_XDECREF(object);
      }) {
  if (raised.trace()) PyException_SetTraceback(raised_.get(), raised.trace().ptr());
}

py::object PythonFailure::raised() const {
  return py::reinterpret_borrow<py::object>(raised_.get());
}

}  // namespace millrace::python
