// The library's exceptions as those of millrace.errors, with the same sentence.
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/parameters.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/transport/endpoint.hpp"
#include "module/bindings.hpp"
#include "module/python_failure.hpp"

namespace millrace::python {

namespace {

/// The class of millrace.errors; the first that fits.
const char* class_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return "InvalidArgument";
  if (dynamic_cast<const DataError*>(&error) != nullptr) return "DataError";
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) return "Mismatch";
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return "PeerLost";
  if (dynamic_cast<const PeerHangs*>(&error) != nullptr) return "PeerHangs";
  if (dynamic_cast<const Stopped*>(&error) != nullptr) return "Stopped";
  return "Error";
}

py::object as_python(const Error& error) {
  py::object raised = py::module_::import("millrace.errors").attr(class_of(error))(error.what());
  raised.attr("exit_code") = exit_code_of(error);
  return raised;
}

/// What was raised in the pass: in Python, or by the library; none where something else was.
py::object cause_of(const StepError& error) {
  if (!error.nested_ptr()) return py::none();
  try {
    error.rethrow_nested();
  } catch (const PythonFailure& failure) {
    return failure.raised();
  } catch (const Error& cause) {
    return as_python(cause);
  } catch (const std::exception&) {
    return py::none();
  }
}

/// StepError from what the stage raised; Ctrl-C and sys.exit() stay what they are.
void raise_step(const StepError& error) {
  const py::object cause = cause_of(error);
  if (!cause.is_none() && PyErr_GivenExceptionMatches(cause.ptr(), PyExc_Exception) == 0) {
    PyErr_SetObject(py::type::of(cause).ptr(), cause.ptr());
    return;
  }
  const py::object type = py::module_::import("millrace.errors").attr("StepError");
  const py::object raised = type(error.what(), error.rank().value, to_string(error.action()));
  raised.attr("__cause__") = cause;
  raised.attr("exit_code") = exit_code_of(error);
  PyErr_SetObject(type.ptr(), raised.ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const StepError& error) {
    raise_step(error);
  } catch (const Error& error) {
    const py::object raised = as_python(error);
    PyErr_SetObject(py::type::of(raised).ptr(), raised.ptr());
  }
}

}  // namespace

void bind_errors(py::module_&) {
  py::register_exception_translator(&translate);
}

}  // namespace millrace::python
