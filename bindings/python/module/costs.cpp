// ModelCosts: times and memory of a model, said once for every cut of it.
#include <pybind11/stl.h>

#include "millrace/scheduler/plan/cost_file.hpp"
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
  bind_list(costs, "forward", &ModelCosts::forward);
  bind_list(costs, "input", &ModelCosts::input);
  bind_list(costs, "weight", &ModelCosts::weight);
  bind_list(costs, "recompute_time", &ModelCosts::recompute_time);
  bind_list(costs, "slice_costs", &ModelCosts::slice_costs);
  bind_list(costs, "memory_forward", &ModelCosts::memory_forward);
  bind_list(costs, "memory_input", &ModelCosts::memory_input);
  bind_list(costs, "memory_weight", &ModelCosts::memory_weight);
  bind_list(costs, "memory_boundary", &ModelCosts::memory_boundary);
  bind_list(costs, "latency", &ModelCosts::latency);
  bind_list(costs, "bandwidth", &ModelCosts::bandwidth);
  bind_list(costs, "rank_speed", &ModelCosts::rank_speed);
  costs.def_readonly("message_bytes", &ModelCosts::message_bytes)
      .def_readonly("pair_cost", &ModelCosts::pair_cost)
      .def_readonly("chunk_costs", &ModelCosts::chunk_costs)
      .def_readonly("contention", &ModelCosts::contention)
      .def_readonly("atomic_pairs", &ModelCosts::atomic_pairs)
      .def_readonly("cores", &ModelCosts::cores)
      .def_property_readonly("file", [](const ModelCosts& self) -> py::object {
        return self.file ? py::cast(self.file_name) : py::none();
      });
}

}  // namespace millrace::python
