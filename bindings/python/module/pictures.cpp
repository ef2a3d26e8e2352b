// Pictures of a simulated program: text, SVG, a page, a trace.
#include <pybind11/stl.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "module/arguments.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

Simulated run_of(const Program& program, const py::object& costs) {
  const Costs given = costs_of(costs);
  return simulated(Graph(program), given);
}

std::string title_of(const Program& program, const std::optional<std::string>& title) {
  return title ? *title : program.name;
}

std::string svg(const Program& program,
                const py::object& costs,
                const std::optional<std::string>& title) {
  const Simulated run = run_of(program, costs);
  const py::gil_scoped_release unlocked;
  return draw_svg(program, run.timeline, run.cost, title_of(program, title));
}

std::string html(const Program& program,
                 const py::object& costs,
                 const std::optional<std::string>& title,
                 const std::vector<SharedProgram>& others) {
  const Simulated run = run_of(program, costs);
  std::vector<Drawing> drawings;
  for (const SharedProgram& other : others)
    drawings.push_back({*other, run_of(*other, costs).timeline});
  const py::gil_scoped_release unlocked;
  return draw_html(program, run.timeline, run.cost, title_of(program, title), drawings);
}

std::string ascii(const Program& program, const py::object& costs, int columns, bool colour) {
  const Simulated run = run_of(program, costs);
  return draw_ascii(program, run.timeline, {.colour = colour, .columns = columns});
}

std::string trace(const Program& program, const py::object& costs) {
  return draw_trace(program, run_of(program, costs).timeline);
}

/// A program that can run as it runs with F = I = W = 1, another one in its order.
std::string text(const Program& program) {
  const Graph graph(program);
  const Cost cost = Cost::unit(program.shape);
  const auto run = simulate(graph, cost);
  if (const auto* timeline = std::get_if<Timeline>(&run)) return draw_ascii(program, *timeline);
  return draw_order(program, {});
}

}  // namespace

void bind_pictures(ProgramClass& program) {
  program
      .def("svg",
           &svg,
           "costs"_a = py::none(),
           py::kw_only(),
           "title"_a = py::none(),
           "An SVG picture: a bar per rank, its memory below.")
      .def("_repr_svg_", [](const Program& self) { return svg(self, py::none(), {}); })
      .def("_repr_html_",
           [](const Program& self) { return "<div>" + svg(self, py::none(), {}) + "</div>"; })
      .def("html",
           &html,
           "costs"_a = py::none(),
           py::kw_only(),
           "title"_a = py::none(),
           "others"_a = std::vector<SharedProgram>{},
           "A page to explore. `others`: the same schedule with other numbers of micro-batches, "
           "for a slider.")
      .def("ascii",
           &ascii,
           "costs"_a = py::none(),
           py::kw_only(),
           "columns"_a = 0,
           "colour"_a = false,
           "A line of text per rank, time to the right.")
      .def("trace", &trace, "costs"_a = py::none(), "A trace for Perfetto and Chrome.")
      .def("__str__", &text);
}

}  // namespace millrace::python
