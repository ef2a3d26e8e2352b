// What Python hands over, as the library's options: costs said in several ways, numbers that may be
// lists, parameters of schedules by keyword.
#pragma once

#include <optional>
#include <pybind11/pybind11.h>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::python {

namespace py = pybind11;

/// None: nothing; a number: one value; a sequence or array: its values. Throws InvalidArgument,
/// naming `what`, for anything else and for what is not finite.
[[nodiscard]] std::vector<double> numbers_of(const py::object& value, const char* what);

/// As above of whole numbers.
[[nodiscard]] std::vector<int> counts_of(const py::object& value, const char* what);

/// None: the default; Costs; a mapping of its members; or the path of a cost file.
[[nodiscard]] Costs costs_of(const py::object& value);

/// The members of Costs by keyword; `file` is a path.
[[nodiscard]] Costs costs_of_members(const py::dict& members);

/// Parameters of a schedule by the names of millrace.parameters(). None leaves one unset.
[[nodiscard]] ScheduleOptions options_of(int ranks, int micro_batches, const py::kwargs& members);

/// "the list" or "the lists", of text files: all of it. Throws InvalidArgument for one that cannot
/// be read.
[[nodiscard]] std::string text_of_file(const std::string& path);

/// A path as Python has them.
[[nodiscard]] std::string path_of(const py::handle& path);

}  // namespace millrace::python
