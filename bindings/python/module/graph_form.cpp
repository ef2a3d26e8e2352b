// Whether a graph of PyTorch's autograd has a form that is known: split_backward.py asks for every
// micro-batch. It reads attributes of Python's objects alone.
#include <algorithm>
#include <functional>
#include <vector>

#include "module/bindings.hpp"

namespace millrace::python {

namespace {

Py_ssize_t number_in(PyObject* tuple, Py_ssize_t at) {
  return PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, at));
}

/// Whether the edges are the expected ones. Puts the children into `nodes`.
bool match_edges(PyObject* edges, PyObject* expected, PyObject* nodes) {
  if (PyTuple_GET_SIZE(edges) != PyTuple_GET_SIZE(expected)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(edges); ++i) {
    PyObject* const edge = PyTuple_GET_ITEM(edges, i);
    PyObject* const wanted = PyTuple_GET_ITEM(expected, i);
    PyObject* const child = PyTuple_GET_ITEM(edge, 0);
    const Py_ssize_t to = number_in(wanted, 0);
    if (number_in(edge, 1) != number_in(wanted, 1) || (child == Py_None) != (to < 0)) return false;
    if (to < 0) continue;
    PyObject* const known = PyList_GET_ITEM(nodes, to);
    if (known == Py_None) {
      Py_INCREF(child);
      PyList_SetItem(nodes, to, child);
    } else if (known != child) {
      return false;
    }
  }
  return true;
}

/// Whether the roots, which are (node, output, ...), begin there; puts their nodes into `nodes`.
bool match_roots(const py::tuple& ends, const py::list& roots, PyObject* nodes) {
  if (ends.size() != roots.size()) return false;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    PyObject* const root = PyList_GET_ITEM(roots.ptr(), static_cast<Py_ssize_t>(i));
    PyObject* const end = PyTuple_GET_ITEM(ends.ptr(), static_cast<Py_ssize_t>(i));
    PyObject* const node = PyTuple_GET_ITEM(root, 0);
    PyObject* const known = PyList_GET_ITEM(nodes, number_in(end, 0));
    if (number_in(root, 1) != number_in(end, 1) || (known != Py_None && known != node))
      return false;
    Py_INCREF(node);
    PyList_SetItem(nodes, number_in(end, 0), node);
  }
  return true;
}

bool are_distinct(PyObject* nodes) {
  std::vector<PyObject*> all(PySequence_Fast_ITEMS(nodes),
                             PySequence_Fast_ITEMS(nodes) + PyList_GET_SIZE(nodes));
  std::ranges::sort(all, std::less<>());
  return std::ranges::adjacent_find(all) == all.end();
}

py::object match_graph(const py::tuple& form, const py::tuple& ends, const py::list& roots) {
  static PyObject* const next_functions = PyUnicode_InternFromString("next_functions");
  py::list nodes(form.size());
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(nodes.ptr()); ++i) {
    Py_INCREF(Py_None);
    PyList_SET_ITEM(nodes.ptr(), i, Py_None);
  }
  if (!match_roots(ends, roots, nodes.ptr())) return py::none();
  for (const py::handle step : form) {
    PyObject* const node = PyList_GET_ITEM(nodes.ptr(), number_in(step.ptr(), 0));
    if (reinterpret_cast<PyObject*>(Py_TYPE(node)) != PyTuple_GET_ITEM(step.ptr(), 1))
      return py::none();
    const auto edges = py::reinterpret_steal<py::object>(PyObject_GetAttr(node, next_functions));
    if (!edges) throw py::error_already_set();
    if (!match_edges(edges.ptr(), PyTuple_GET_ITEM(step.ptr(), 2), nodes.ptr())) return py::none();
  }
  return are_distinct(nodes.ptr()) ? py::object(nodes) : py::none();
}

}  // namespace

void bind_graph_form(py::module_& module) {
  using namespace py::literals;
  module.def(
      "match_graph",
      &match_graph,
      "form"_a,
      "ends"_a,
      "roots"_a,
      "The nodes of a graph of this form by number, else None. `form`: by node, parents first, "
      "its number, its type, and its edges as (number of the child or -1, output). `ends`: "
      "(number, output) of the roots, which are GradientEdges.");
}

}  // namespace millrace::python
