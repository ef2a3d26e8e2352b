// Actions and times as numpy arrays: 16 bytes an action, copied as a block, so that a program of
// 131,072 actions crosses in a millisecond.
#pragma once

#include <pybind11/numpy.h>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::python {

namespace py = pybind11;

/// The fields of Action, in its layout.
[[nodiscard]] py::dtype action_dtype();

/// A copy of one rank's actions. Needs the interpreter's lock.
[[nodiscard]] py::array to_array(const std::vector<Action>& actions);

/// What numpy makes actions of: an array of action_dtype, or rows (op, with_next, replica, edge,
/// stage, micro_batch, slice). Throws InvalidArgument.
[[nodiscard]] std::vector<Action> actions_of(const py::object& rows);

/// One (n, 2) array per rank: start and end of each action, in units.
[[nodiscard]] py::list to_arrays(const Timeline& timeline);

/// One (n, 2) array per rank: from when on, and how much.
[[nodiscard]] py::list to_arrays(const std::vector<std::vector<MemoryStep>>& memory);

}  // namespace millrace::python
