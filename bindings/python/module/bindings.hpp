// The parts of the module, each bound in a file of its own.
#pragma once

#include <memory>
#include <pybind11/pybind11.h>
#include <string>

#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/search.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "millrace/training/trainer_options.hpp"

namespace millrace::python {

namespace py = pybind11;

/// Immutable, so Python objects share it.
using SharedProgram = std::shared_ptr<Program>;
using ProgramClass = py::class_<Program, SharedProgram>;

void bind_errors(py::module_& module);
void bind_costs(py::module_& module);
ProgramClass bind_program(py::module_& module);
void bind_passes(ProgramClass& program);
void bind_checks(ProgramClass& program);
void bind_pictures(ProgramClass& program);
void bind_catalogue(py::module_& module);
void bind_search(py::module_& module, ProgramClass& program);
void bind_tables(py::module_& module);
void bind_dlpack(py::module_& module);
void bind_launched(py::module_& module);
void bind_training(py::module_& module);
void bind_step_passes(py::module_& module);
void bind_step_records(py::module_& module);
void bind_checkpoints(py::module_& module);

/// A dataclass of millrace.results, made from its fields by name.
template <class... Fields>
py::object made(const char* name, Fields&&... fields) {
  return py::module_::import("millrace.results").attr(name)(std::forward<Fields>(fields)...);
}

/// The numbers of a result by name: keywords of its dataclass.
template <class Result>
py::dict fields_of(const Result& result) {
  py::dict fields;
  for (const ResultField<Result>& field : result_fields<Result>())
    if (field.is_in(ResultField<Result>::Record))
      fields[py::str(std::string(field.name))] = field.of(result);
  return fields;
}

/// A run of a program: what a picture and a report are made of.
struct Simulated {
  Cost cost;
  Timeline timeline;
};

/// Throws InvalidArgument, with the cycle, when the program cannot proceed.
[[nodiscard]] Simulated simulated(const Graph& graph, const Costs& costs);

/// millrace.results.Report.
[[nodiscard]] py::object report_object(const Graph& graph, const Simulated& run);

/// millrace.results.Accumulation.
[[nodiscard]] py::object accumulation_object(const Program& program);

/// The keywords of a Trainer. None stands for the default. Throws InvalidArgument.
[[nodiscard]] TrainerOptions options_of(const py::dict& keywords);

/// A list of millrace.results.Violation.
[[nodiscard]] py::list violation_objects(const std::vector<Violation>& violations,
                                         const Program& program);

}  // namespace millrace::python
