// The library's exceptions as those of millrace.errors, with the same sentence.
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/stop.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "module/bindings.hpp"
#include "module/python_failure.hpp"

namespace millrace::python {

namespace {

void raise(const char* name, const std::exception& error) {
  const py::object type = py::module_::import("millrace.errors").attr(name);
  PyErr_SetString(type.ptr(), error.what());
}

/// What Python raised in the pass; none where something else did.
py::object cause_of(const StepError& error) {
  if (!error.nested_ptr()) return py::none();
  try {
    error.rethrow_nested();
  } catch (const PythonFailure& failure) {
    return failure.raised();
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
  PyErr_SetObject(type.ptr(), raised.ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const InvalidArgument& error) {
    raise("InvalidArgument", error);
  } catch (const DataError& error) {
    raise("DataError", error);
  } catch (const StepError& error) {
    raise_step(error);
  } catch (const Stopped& error) {
    raise("Stopped", error);
  } catch (const Error& error) {
    raise("Error", error);
  }
}

}  // namespace

void bind_errors(py::module_&) {
  py::register_exception_translator(&translate);
}

}  // namespace millrace::python
