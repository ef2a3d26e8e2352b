// The compiled half of `import millrace`: the plan room, in Python's types. The package beside it
// gives it its names.
#include "module/bindings.hpp"

PYBIND11_MODULE(_millrace, module) {
  using namespace millrace::python;
  module.doc() = "The compiled half of millrace; import millrace instead.";
  bind_errors(module);
  bind_costs(module);
  ProgramClass program = bind_program(module);
  bind_passes(program);
  bind_checks(program);
  bind_pictures(program);
  bind_catalogue(module);
  bind_search(module, program);
  bind_tables(module);
  bind_dlpack(module);
  bind_launched(module);
  bind_training(module);
  bind_step_records(module);
  bind_step_passes(module);
  bind_checkpoints(module);
}
