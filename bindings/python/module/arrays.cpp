// Actions and times as numpy arrays; see arrays.hpp.
#include "module/arrays.hpp"

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "millrace/core/error.hpp"

namespace millrace::python {

namespace {

static_assert(std::is_trivially_copyable_v<Action> && std::is_standard_layout_v<Action>);

/// The bytes of an array become actions; a truth value that is neither 0 nor 1 would be none.
std::vector<Action> copied(const py::array& array) {
  const auto count = static_cast<std::size_t>(array.size());
  std::vector<Action> actions(count);
  const auto* bytes = static_cast<const std::uint8_t*>(array.data());
  for (std::size_t i = 0; i < count; ++i)
    require(bytes[i * sizeof(Action) + offsetof(Action, with_next)] <= 1,
            "with_next of an action is neither true nor false");
  if (count > 0) std::memcpy(actions.data(), bytes, count * sizeof(Action));
  return actions;
}

template <class Item, class First, class Second>
py::array_t<double> columns(const std::vector<Item>& items, First&& first, Second&& second) {
  py::array_t<double> array({static_cast<py::ssize_t>(items.size()), py::ssize_t{2}});
  double* to = array.mutable_data();
  for (const Item& item : items) {
    *to++ = first(item);
    *to++ = second(item);
  }
  return array;
}

}  // namespace

py::dtype action_dtype() {
  py::list names, formats, offsets;
  const auto add = [&](const char* name, const char* format, std::size_t offset) {
    names.append(name);
    formats.append(format);
    offsets.append(offset);
  };
  add("op", "u1", offsetof(Action, op));
  add("with_next", "?", offsetof(Action, with_next));
  add("replica", "u1", offsetof(Action, replica_number));
  add("edge", "u1", offsetof(Action, edge));
  add("stage", "i4", offsetof(Action, stage));
  add("micro_batch", "i4", offsetof(Action, micro_batch));
  add("slice", "i4", offsetof(Action, slice));
  return py::dtype(names, formats, offsets, sizeof(Action));
}

py::array to_array(const std::vector<Action>& actions) {
  const auto count = static_cast<py::ssize_t>(actions.size());
  return py::array(  // with strides: see array_over in tensors.cpp
      action_dtype(),
      {count},
      {py::ssize_t{sizeof(Action)}},
      actions.data());
}

std::vector<Action> actions_of(const py::object& rows) {
  const py::module_ numpy = py::module_::import("numpy");
  py::array array;
  try {
    array = numpy.attr("ascontiguousarray")(rows, action_dtype());
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
    throw InvalidArgument(
        "the actions of a rank are texts such as '0F3', or an array of millrace.action_dtype; "
        "numpy says: " +
        std::string(py::str(error.value())));
  }
  require(array.ndim() == 1, "the actions of a rank are an array of one dimension");
  return copied(array);
}

py::list to_arrays(const Timeline& timeline) {
  py::list ranks;
  const double unit = timeline.ticks_per_unit;
  for (const auto& intervals : timeline.ranks)
    ranks.append(columns(
        intervals,
        [unit](const Interval& time) { return time.start / unit; },
        [unit](const Interval& time) { return time.end / unit; }));
  return ranks;
}

py::list to_arrays(const std::vector<std::vector<MemoryStep>>& memory) {
  py::list ranks;
  for (const auto& steps : memory)
    ranks.append(columns(
        steps,
        [](const MemoryStep& step) { return step.time; },
        [](const MemoryStep& step) { return step.bytes; }));
  return ranks;
}

}  // namespace millrace::python
