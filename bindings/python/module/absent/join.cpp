// A build without ZeroMQ: one process alone, and a sentence where somebody launched several.
#include "millrace/core/error.hpp"
#include "module/launched.hpp"

namespace millrace::python {

JoinedRank joined(const HelloFields&) {
  const py::gil_scoped_acquire locked;
  const py::object said =
      py::module_::import("os").attr("environ").attr("get")("MILLRACE_WORLD", "1");
  require(
      said.cast<std::string>() == "1",
      "this build of millrace has no ZeroMQ, by which ranks meet (Debian: libzmq3-dev cppzmq-dev)");
  return alone();
}

}  // namespace millrace::python
