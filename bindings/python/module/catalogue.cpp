// The catalogue of schedules and what generates them.
#include "millrace/scheduler/plan/draw.hpp"
#include "module/arguments.hpp"
#include "module/bindings.hpp"
#include "module/interruptible.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

py::tuple parameters_of(const ScheduleEntry& entry) {
  py::list names;
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (entry.takes(parameter.name)) names.append(std::string(parameter.name));
  return py::tuple(names);
}

py::list schedule_objects() {
  py::list rows;
  for (const ScheduleEntry& entry : schedules())
    rows.append(made("Schedule",
                     std::string(entry.name),
                     std::string(entry.title),
                     parameters_of(entry),
                     std::string(entry.needs),
                     std::string(entry.bubble),
                     std::string(entry.peak),
                     std::string(entry.source)));
  return rows;
}

py::list parameter_objects() {
  py::list rows;
  for (const ScheduleParameter& parameter : kScheduleParameters)
    rows.append(made("Parameter",
                     std::string(parameter.name),
                     std::string(parameter.symbol),
                     allowed_values(parameter),
                     default_value(parameter),
                     std::string(parameter.help)));
  return rows;
}

SharedProgram generated(const std::string& name,
                        int ranks,
                        int micro_batches,
                        const py::object& costs,
                        const py::kwargs& members) {
  ScheduleOptions options = options_of(ranks, micro_batches, members);
  const Costs given = costs_of(costs);
  return interruptible([&](const Stop& stop) {
    options.stop = stop;
    return std::make_shared<Program>(generate(name, options, given));
  });
}

}  // namespace

void bind_catalogue(py::module_& module) {
  module.def("schedules", &schedule_objects, "All schedules of the catalogue.");
  module.def("parameters", &parameter_objects, "What `generate` may be asked for.");
  module.def("generate",
             &generated,
             "name"_a,
             "ranks"_a = 4,
             "micro_batches"_a = 8,
             py::kw_only(),
             "costs"_a = py::none(),
             "A schedule of the catalogue. Keywords are those of `parameters()`: chunks, slices, "
             "group, waves, order, memory_limit. `costs` matter to schedules that are ordered by "
             "time. Raises InvalidArgument where the schedule has no meaning.");
  module.def("gallery",
             &draw_gallery,
             "ranks"_a = 4,
             "micro_batches"_a = 8,
             "A page with every schedule of the catalogue, drawn.");
}

}  // namespace millrace::python
