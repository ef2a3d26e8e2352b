// What Python hands over, as the library's options; see arguments.hpp.
#include "module/arguments.hpp"

#include <algorithm>
#include <cmath>
#include <pybind11/numpy.h>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"
#include "millrace/core/whole_file.hpp"

namespace millrace::python {

namespace {

std::string type_of(const py::handle& value) {
  return py::str(py::type::handle_of(value).attr("__name__"));
}

double number_of(const py::handle& value, const char* what) {
  double number = 0;
  try {
    number = value.cast<double>();
  } catch (const py::cast_error&) {
    throw InvalidArgument(std::string(what) + " holds a " + type_of(value) +
                          "; expected a number or a list of numbers");
  }
  require(std::isfinite(number), std::string(what) + " holds a number that is not finite");
  return number;
}

bool is_sequence(const py::handle& value) {
  return !py::isinstance<py::str>(value) && !py::isinstance<py::bytes>(value) &&
         py::hasattr(value, "__iter__");
}

/// The row of that name. Throws InvalidArgument with the nearest name.
const CostMember& member_called(const std::string& name) {
  const auto rows = cost_members();
  const auto distance = [&](const CostMember& row) {
    return row.help.empty() ? std::size_t{1000} : edit_distance(name, std::string(row.name));
  };
  const auto nearest = std::ranges::min_element(rows, {}, distance);
  require(distance(*nearest) == 0, [&] {
    return "costs have no member called '" + name + "'; did you mean '" +
           std::string(nearest->name) + "'?";
  });
  return *nearest;
}

Costs costs_in(const std::string& path) {
  ParsedCosts read = read_costs(text_of_file(path));
  if (!read.costs) throw DataError(path + ":" + to_string(read.diagnostics.front()));
  return std::move(*read.costs);
}

int count_of(const CostMember& row, const py::object& value) {
  const std::string name(row.name);
  const std::vector<int> counts = counts_of(value, name.c_str());
  require(counts.size() == 1 && counts.front() >= row.least,
          name + " is a whole number from " + std::to_string(static_cast<int>(row.least)));
  return counts.front();
}

void set_member(Costs& costs, const CostMember& row, const py::object& value) {
  const std::string name(row.name);
  if (const auto* list = std::get_if<std::vector<double> Costs::*>(&row.member)) {
    costs.** list = numbers_of(value, name.c_str());
  } else if (const auto* number = std::get_if<std::optional<double> Costs::*>(&row.member)) {
    costs.** number = number_of(value, name.c_str());
  } else if (const auto* some = std::get_if<std::optional<int> Costs::*>(&row.member)) {
    costs.** some = count_of(row, value);
  } else if (const auto* count = std::get_if<int Costs::*>(&row.member)) {
    costs.** count = count_of(row, value);
  } else {
    require(py::isinstance<py::bool_>(value), name + " is a " + type_of(value) + "; it is a bool");
    costs.*std::get<bool Costs::*>(row.member) = value.cast<bool>();
  }
}

}  // namespace

std::string path_of(const py::handle& path) {
  return py::module_::import("os").attr("fsdecode")(path).cast<std::string>();
}

std::string text_of_file(const std::string& path) {
  return read_whole<std::string>(path, path, kPlanLimit);
}

std::vector<double> numbers_of(const py::object& value, const char* what) {
  if (value.is_none()) return {};
  if (!is_sequence(value)) return {number_of(value, what)};
  std::vector<double> numbers;
  for (const py::handle item : py::iter(value)) numbers.push_back(number_of(item, what));
  require(!numbers.empty(), std::string(what) + " is an empty list; leave it out for the default");
  return numbers;
}

std::vector<int> counts_of(const py::object& value, const char* what) {
  if (value.is_none()) return {};
  std::vector<int> counts;
  const auto add = [&](const py::handle& item) {
    require(PyIndex_Check(item.ptr()) != 0 && !py::isinstance<py::bool_>(item),
            std::string(what) + " holds a " + type_of(item) + "; expected whole numbers");
    const py::int_ number(py::reinterpret_borrow<py::object>(item));
    try {
      counts.push_back(number.cast<int>());
    } catch (const py::cast_error&) {
      throw InvalidArgument(std::string(what) + " is " + std::string(py::str(py::handle(number))) +
                            "; the largest number is 2147483647");
    }
  };
  if (is_sequence(value))
    for (const py::handle item : py::iter(value)) add(item);
  else
    add(value);
  require(!counts.empty(), std::string(what) + " is an empty list; leave it out for the default");
  return counts;
}

Costs costs_of_members(const py::dict& members) {
  Costs costs;
  std::string file;
  for (const auto& [key, value] : members) {
    if (value.is_none()) continue;
    const std::string name = py::str(key);
    if (name == "file")
      file = path_of(value);
    else
      set_member(costs, member_called(name), py::reinterpret_borrow<py::object>(value));
  }
  if (!file.empty()) return over(costs_in(file), file, std::move(costs));
  require_consistent(costs);
  return costs;
}

Costs costs_of(const py::object& value) {
  if (value.is_none()) return {};
  if (py::isinstance<Costs>(value)) return value.cast<Costs>();
  if (py::isinstance<py::dict>(value)) return costs_of_members(value);
  require(py::isinstance<py::str>(value) || py::hasattr(value, "__fspath__"),
          "costs are a " + type_of(value) +
              "; expected millrace.Costs, a dict of its members or the path of a cost file");
  const std::string path = path_of(value);
  return over(costs_in(path), path, {});
}

ScheduleOptions options_of(int ranks, int micro_batches, const py::kwargs& members) {
  ScheduleOptions options;
  const auto set = [&](std::string_view name, const std::string& text) {
    set_value(options, kScheduleParameters[parameter_index(name)], text);
  };
  set("ranks", std::to_string(ranks));
  set("micro_batches", std::to_string(micro_batches));
  for (const auto& [name, value] : members)
    if (!value.is_none()) set(std::string(py::str(name)), py::str(value));
  return options;
}

}  // namespace millrace::python
