// Records of steps, and what is made of them: lines of a log, metrics, the page of a run.
#include <pybind11/stl.h>

#include "millrace/training/records.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

/// What the lines of a log look like: a record without numbers.
StepRecord form(int ranks, int copies, bool validates) {
  StepRecord record;
  record.validates = validates;
  for (int copy = 0; copy < copies; ++copy)
    for (int rank = 0; rank < ranks; ++rank) record.ranks.push_back({Rank{rank}, copy, {}, {}});
  return record;
}

/// millrace._millrace.RunTotals: of the steps of a run, from which its metrics and page are made.
struct RunTotals {
  StepTotals totals;
  RunHistory history;

  void add(const StepRecord& record) {
    totals.add(record);
    history.add(record);
  }
  [[nodiscard]] std::string page(const std::string& title,
                                 const std::string& subtitle,
                                 const Program& program,
                                 const StepRecord& last) const {
    return draw_page({title, subtitle, history, totals, program, last.timeline});
  }
};

}  // namespace

void bind_step_records(py::module_& module) {
  py::class_<StepRecord>(module, "StepRecord", "One step: results, and every rank's time by cause.")
      .def(py::init(&form), "ranks"_a, "copies"_a, "validates"_a)
      .def_static("read", &read_record, "line"_a, "columns"_a = "", "What json() or csv() gave.")
      .def_readonly("step", &StepRecord::step)
      .def_readonly("seconds", &StepRecord::seconds)
      .def_readwrite("ended", &StepRecord::ended)
      .def_readwrite("restarts", &StepRecord::restarts)
      .def_readwrite("downtime", &StepRecord::downtime)
      .def_readwrite("validates", &StepRecord::validates)
      .def_readwrite("validation_loss", &StepRecord::validation_loss)
      .def_readwrite("validation_accuracy", &StepRecord::validation_accuracy)
      .def("json", &json_line)
      .def("csv", &csv_line)
      .def("columns", &csv_columns);
  py::class_<RunTotals>(module, "RunTotals", "Sums and curves of a run.")
      .def(py::init<>())
      .def("add", &RunTotals::add, "record"_a)
      .def(
          "metrics",
          [](const RunTotals& self, const StepRecord& last) {
            return prometheus_text(self.totals, last);
          },
          "last"_a)
      .def("page", &RunTotals::page, "title"_a, "subtitle"_a, "program"_a, "last"_a)
      .def_property_readonly("steps", [](const RunTotals& self) { return self.totals.steps(); })
      .def_property_readonly("restarts",
                             [](const RunTotals& self) { return self.totals.restarts(); })
      .def_property_readonly("goodput", [](const RunTotals& self) { return self.totals.goodput(); })
      .def_property_readonly("bottleneck",
                             [](const RunTotals& self) { return bottleneck(self.totals); });
}

}  // namespace millrace::python
