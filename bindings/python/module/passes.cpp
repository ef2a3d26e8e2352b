// Passes: a program made of a program.
#include "millrace/scheduler/plan/passes.hpp"

#include <pybind11/stl.h>

#include "module/bindings.hpp"

namespace millrace::python {

namespace {

SharedProgram recomputing(const Program& program, const std::string& stages) {
  const std::vector<bool> chosen = parse_recompute_stages(stages, program.shape.stages());
  return std::make_shared<Program>(insert_recompute(program, chosen));
}

template <Program (*pass)(Program)>
SharedProgram passed(const Program& program) {
  const py::gil_scoped_release unlocked;
  return std::make_shared<Program>(pass(program));
}

SharedProgram reducing(const Program& program, int copies) {
  const py::gil_scoped_release unlocked;
  return std::make_shared<Program>(insert_reductions(program, copies));
}

}  // namespace

void bind_passes(ProgramClass& program) {
  using namespace py::literals;
  program
      .def("insert_messages",
           &passed<&insert_messages>,
           "Adds sends and receives, deadlock-free even where a send waits for its receive.")
      .def("insert_messages_before_use",
           &passed<&insert_messages_before_use>,
           "Adds each receive right before its use and each send right after what it sends.")
      .def("receive_before_use",
           &passed<&receive_before_use>,
           "Moves each receive right before the action that uses it.")
      .def("insert_reductions",
           &reducing,
           "copies"_a = 1,
           "Adds REDUCE_GRAD for stages that live on several ranks; of several copies of the "
           "pipeline, for every stage.")
      .def("insert_recompute",
           &recomputing,
           "stages"_a = "all",
           "Adds a recompute before every backward of the stages: \"all\", \"stages:0,2-4\".")
      .def("split_backward", &passed<&split_backward>, "Replaces every B by I and W.")
      .def("merge_backward",
           &passed<&merge_backward>,
           "Replaces every I directly followed by its own W by B.")
      .def("decouple_pairs", &passed<&decouple_pairs>, "Pairs run one half after the other.")
      .def("compute_only", &passed<&compute_only>, "Removes messages, reductions and recompute.");
}

}  // namespace millrace::python
