// What Python hands over, as the library's options; see arguments.hpp.
#include "module/arguments.hpp"

#include <array>
#include <cmath>
#include <pybind11/numpy.h>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"
#include "millrace/core/whole_file.hpp"
#include "millrace/scheduler/plan/cost_members.hpp"

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

/// The member called `name` of a table; null: none.
template <class Table>
auto member_called(const Table& table, std::string_view name) -> decltype(table.front().member) {
  for (const auto& [known, member] : table)
    if (name == known) return member;
  return nullptr;
}

[[noreturn]] void refuse_member(const std::string& name) {
  std::vector<std::string> known = {"accumulate", "cores", "data_parallel", "file"};
  const auto add = [&known](const auto& table) {
    for (const auto& [member, where] : table) known.emplace_back(member);
  };
  add(kCostLists), add(kMachineLists), add(kCostNumbers), add(kCostFlags);
  const std::string* nearest = &known.front();
  for (const std::string& candidate : known)
    if (edit_distance(name, candidate) < edit_distance(name, *nearest)) nearest = &candidate;
  throw InvalidArgument("costs have no member called '" + name + "'; did you mean '" + *nearest +
                        "'?");
}

void set_file(ModelCosts& costs, const std::string& path) {
  ParsedCosts read = read_costs(text_of_file(path));
  if (!read.costs) throw DataError(path + ":" + to_string(read.diagnostics.front()));
  costs.file = std::make_shared<const CostFile>(std::move(*read.costs));
  costs.file_name = path;
}

void set_member(ModelCosts& costs, const std::string& name, const py::handle& value) {
  const auto object = py::reinterpret_borrow<py::object>(value);
  if (auto list = member_called(kCostLists, name)) {
    costs.*list = numbers_of(object, name.c_str());
  } else if (auto machine = member_called(kMachineLists, name)) {
    costs.*machine = numbers_of(object, name.c_str());
  } else if (auto flag = member_called(kCostFlags, name)) {
    require(py::isinstance<py::bool_>(value), name + " is a " + type_of(value) + "; it is a bool");
    costs.*flag = value.cast<bool>();
  } else if (auto number = member_called(kCostNumbers, name)) {
    costs.*number = number_of(value, name.c_str());
  } else if (name == "cores") {
    const std::vector<int> cores = counts_of(object, "cores");
    require(cores.size() == 1 && cores.front() >= 0,
            "cores is a whole number: 0, a processor per rank, or how many the ranks share");
    costs.cores = cores.front();
  } else if (name == "data_parallel") {
    const std::vector<int> copies = counts_of(object, "data_parallel");
    require(copies.size() == 1 && copies.front() >= 1,
            "data_parallel is a whole number from 1: how many copies of the pipeline are trained");
    costs.data_parallel = copies.front();
  } else if (name == "accumulate") {
    const std::vector<int> passes = counts_of(object, "accumulate");
    require(passes.size() == 1 && passes.front() >= 1,
            "accumulate is a whole number from 1: how many passes of the micro-batches a step has");
    costs.accumulate = passes.front();
  } else if (name == "file") {
    set_file(costs, path_of(value));
  } else {
    refuse_member(name);
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

ModelCosts costs_of_members(const py::dict& members) {
  ModelCosts costs;
  for (const auto& [name, value] : members)
    if (!value.is_none()) set_member(costs, py::str(name), value);
  require_said_once(costs);
  return costs;
}

ModelCosts costs_of(const py::object& value) {
  if (value.is_none()) return {};
  if (py::isinstance<ModelCosts>(value)) return value.cast<ModelCosts>();
  if (py::isinstance<py::dict>(value)) return costs_of_members(value);
  require(py::isinstance<py::str>(value) || py::hasattr(value, "__fspath__"),
          "costs are a " + type_of(value) +
              "; expected millrace.ModelCosts, a dict of its members or the path of a cost file");
  ModelCosts costs;
  set_file(costs, path_of(value));
  return costs;
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
