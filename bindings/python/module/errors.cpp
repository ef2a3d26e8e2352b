// The library's exceptions as those of millrace.errors, with the same sentence.
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/stop.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

void raise(const char* name, const std::exception& error) {
  const py::object type = py::module_::import("millrace.errors").attr(name);
  PyErr_SetString(type.ptr(), error.what());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const InvalidArgument& error) {
    raise("InvalidArgument", error);
  } catch (const DataError& error) {
    raise("DataError", error);
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
