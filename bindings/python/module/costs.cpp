// Costs: one property per row of the table.
#include "millrace/scheduler/plan/costs.hpp"

#include <pybind11/stl.h>

#include "module/arguments.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

constexpr const char* kAbout =
    "Times and memory of a model of p full stages: what the flags --f, --i, --w, --mem-f, ... of "
    "the command say. Lists hold 1 value; p values, of p consecutive full stages; or one per "
    "stage, as if each were a full one.";

/// A member as Python has it; None for the default.
py::object value_of(const std::vector<double>& list) {
  return list.empty() ? py::object(py::none()) : py::cast(list);
}

template <class Value>
py::object value_of(const Value& value) {
  return py::cast(value);
}

}  // namespace

void bind_costs(py::module_& module) {
  py::class_<Costs> costs(module, "Costs", kAbout);
  costs.def(py::init([](const py::kwargs& members) { return costs_of_members(members); }));
  for (const CostMember& row : cost_members()) {
    if (row.help.empty()) continue;
    costs.def_property_readonly(
        std::string(row.name).c_str(),
        [&row](const Costs& self) {
          return std::visit([&](auto member) { return value_of(self.*member); }, row.member);
        },
        std::string(row.help).c_str());
  }
  costs.def_property_readonly("file", [](const Costs& self) -> py::object {
    return self.file ? py::cast(self.file_name) : py::none();
  });
}

}  // namespace millrace::python
