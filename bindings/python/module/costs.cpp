// ModelCosts: times and memory of a model, said once for every cut of it.
#include <pybind11/stl.h>

#include "millrace/scheduler/plan/cost_file.hpp"
#include "millrace/scheduler/plan/cost_members.hpp"
#include "module/arguments.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

constexpr const char* kAbout =
    "Times and memory of a model of p full stages: what the flags --f, --i, --w, --mem-f, ... of "
    "the command say. Lists hold 1 value; p values, of p consecutive full stages; or one per "
    "stage, as if each were a full one.";

/// An empty list is the default: None in Python.
template <class Class>
void bind_list(Class& costs, const char* name, std::vector<double> ModelCosts::*list) {
  costs.def_property_readonly(name, [list](const ModelCosts& self) -> py::object {
    if ((self.*list).empty()) return py::none();
    return py::cast(self.*list);
  });
}

}  // namespace

void bind_costs(py::module_& module) {
  py::class_<ModelCosts> costs(module, "ModelCosts", kAbout);
  costs.def(py::init([](const py::kwargs& members) { return costs_of_members(members); }));
  for (const auto& [name, list] : kCostLists) bind_list(costs, name, list);
  for (const auto& [name, list] : kMachineLists) bind_list(costs, name, list);
  for (const auto& [name, number] : kCostNumbers) costs.def_readonly(name, number);
  for (const auto& [name, flag] : kCostFlags) costs.def_readonly(name, flag);
  costs.def_readonly("cores", &ModelCosts::cores)
      .def_readonly("data_parallel", &ModelCosts::data_parallel)
      .def_readonly("accumulate", &ModelCosts::accumulate)
      .def_property_readonly("file", [](const ModelCosts& self) -> py::object {
        return self.file ? py::cast(self.file_name) : py::none();
      });
}

}  // namespace millrace::python
