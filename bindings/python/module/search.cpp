// Searching for a schedule.
#include "millrace/scheduler/plan/search.hpp"

#include <pybind11/stl.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "module/arguments.hpp"
#include "module/bindings.hpp"
#include "module/interruptible.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

/// "2" is 2, "1.5" is 1.5, "lifo" stays.
py::object typed(const std::string& text) {
  for (PyTypeObject* type : {&PyLong_Type, &PyFloat_Type}) try {
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(type))(text);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_ValueError)) throw;
    }
  return py::str(text);
}

py::object found_object(const FoundSchedule& found) {
  py::dict parameters;
  for (const auto& [name, value] : found.parameters)
    parameters[py::str(std::string(name))] = typed(value);
  return made("Found",
              "program"_a = std::make_shared<Program>(found.program),
              "generator"_a = found.generator,
              "parameters"_a = parameters,
              "refinement"_a = found.refinement,
              "recomputed_stages"_a = describe_recompute(found.program),
              **fields_of(found));
}

py::object result_object(const SearchResult& result) {
  py::list front;
  for (const FoundSchedule& found : result.front) front.append(found_object(found));
  return made("SearchResult",
              "best"_a = result.best ? found_object(*result.best) : py::object(py::none()),
              "front"_a = py::tuple(front),
              "lower_bound"_a = result.lower_bound,
              "gap"_a = result.gap,
              "proven"_a = result.proven,
              "evaluations"_a = result.evaluations,
              "cut_by_time"_a = result.cut_by_time);
}

Objective objective_of(const std::string& text) {
  require(text == "makespan" || text == "span",
          "objective is '" + text + "'; known are makespan and span");
  return text == "span" ? Objective::Span : Objective::Makespan;
}

void set_member(SearchOptions& options, const std::string& name, const py::handle& value) {
  if (name == "chunks")
    options.chunks = value.cast<int>();
  else if (name == "slices")
    options.slices = value.cast<int>();
  else if (name == "objective")
    options.objective = objective_of(py::str(value));
  else if (name == "memory_limit")
    options.memory_limit = value.cast<double>();
  else if (name == "budget")
    options.budget = value.cast<std::int64_t>();
  else if (name == "seed")
    options.seed = value.cast<std::uint64_t>();
  else if (name == "recompute")
    options.recompute = value.cast<bool>();
  else if (name == "full_backward")
    options.full_backward = value.cast<bool>();
  else if (name == "bidirectional")
    options.bidirectional = options.bidirectional && value.cast<bool>();
  else if (name == "time_cap_seconds")
    options.time_cap_seconds = value.cast<double>();
  else
    throw InvalidArgument(
        "search has no option '" + name +
        "'; known are chunks, slices, objective, memory_limit, budget, seed, "
        "recompute, full_backward, bidirectional, time_cap_seconds, costs and progress");
}

void set_members(SearchOptions& options, const py::kwargs& members) {
  for (const auto& [key, value] : members) {
    const std::string name = py::str(key);
    if (value.is_none()) continue;
    try {
      set_member(options, name, value);
    } catch (const py::cast_error&) {
      throw InvalidArgument(name + " is " + std::string(py::repr(value)) +
                            "; search cannot take that");
    }
  }
}

/// Calls Python with its lock; what it raises ends the search.
std::function<void(const SearchProgress&)> progress_of(const py::object& told) {
  if (told.is_none()) return {};
  return [told](const SearchProgress& at) {
    const py::gil_scoped_acquire locked;
    told(made("SearchProgress",
              "at"_a = at.at,
              "candidates"_a = at.candidates,
              "timed"_a = at.timed,
              "best"_a = at.best));
  };
}

py::object searched(SearchOptions options,
                    const py::object& costs,
                    const py::object& progress,
                    const py::kwargs& members) {
  const Costs given = costs_of(costs);
  set_costs(options, given);
  set_members(options, members);
  if (options.memory_limit < std::numeric_limits<double>::infinity()) require_memory(given);
  const auto told = progress_of(progress);
  if (told) options.progress = [&told](const SearchProgress& at) { told(at); };
  return result_object(interruptible([&](const Stop& stop) {
    options.stop = stop;
    return search(options);
  }));
}

py::object search_counts(int ranks,
                         int micro_batches,
                         const py::object& costs,
                         const py::object& progress,
                         const py::kwargs& members) {
  SearchOptions options;
  options.ranks = ranks;
  options.micro_batches = micro_batches;
  return searched(std::move(options), costs, progress, members);
}

py::object search_like(const Program& program,
                       const py::object& costs,
                       const py::object& progress,
                       const py::kwargs& members) {
  const Shape& shape = program.shape;
  SearchOptions options;
  options.ranks = shape.ranks;
  options.micro_batches = shape.micro_batches;
  options.slices = shape.slices;
  options.chunks = shape.chunks();
  options.placement = shape.placement;
  return searched(std::move(options), costs, progress, members);
}

}  // namespace

void bind_search(py::module_& module, ProgramClass& program) {
  module.def("search",
             &search_counts,
             "ranks"_a = 4,
             "micro_batches"_a = 8,
             py::kw_only(),
             "costs"_a = py::none(),
             "progress"_a = py::none(),
             "The best schedule for counts, costs and a memory limit, with the gap to what none "
             "can beat. Keywords: chunks, slices, objective ('makespan' or 'span'), memory_limit, "
             "budget, seed, recompute, full_backward, bidirectional, time_cap_seconds. `progress` "
             "is called with "
             "a SearchProgress. Ctrl-C ends it.");
  program.def(
      "search",
      &search_like,
      "costs"_a = py::none(),
      py::kw_only(),
      "progress"_a = py::none(),
      "The best schedule with this program's counts and placement, whatever the order of its "
      "actions: that is what is searched for. Keywords as in millrace.search.");
}

}  // namespace millrace::python
