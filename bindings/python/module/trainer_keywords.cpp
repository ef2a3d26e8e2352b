// The keywords of a Trainer in Python, by the table of settings.
#include <fmt/format.h>
#include <pybind11/pybind11.h>

#include "millrace/core/error.hpp"
#include "millrace/training/settings.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

/// As a setting is written: all digits of a number. An item of a list is a text, a number, or a
/// list of names that are one weight.
std::string text_of(const py::handle& value) {
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (PyBool_Check(value.ptr()) != 0) return value.cast<bool>() ? "true" : "false";
  if (PyIndex_Check(value.ptr()) != 0)
    return py::str(py::int_(py::reinterpret_borrow<py::object>(value))).cast<std::string>();
  if (py::hasattr(value, "__float__"))
    return py::repr(py::float_(py::reinterpret_borrow<py::object>(value))).cast<std::string>();
  if (!py::hasattr(value, "__iter__")) return py::repr(value).cast<std::string>();
  std::string text;
  for (const py::handle item : value) {
    const bool is_tied = !py::isinstance<py::str>(item) && py::hasattr(item, "__iter__");
    if (!text.empty()) text += is_tied ? "; " : " ";
    text += is_tied ? py::str(" = ").attr("join")(item).cast<std::string>() : text_of(item);
  }
  return text;
}

/// The row of a keyword. Throws InvalidArgument with the nearest keyword for any other name.
const Setting& row_of(const std::string& keyword) {
  py::list names;
  for (const Setting& row : settings()) {
    if (!row.is_in(kInKeywords)) continue;
    if (row.name == keyword) return row;
    names.append(row.name);
  }
  py::module_::import("millrace.keywords").attr("refuse_unknown")("Trainer", keyword, names);
  throw InvalidArgument(keyword);
}

/// The settings of millrace.AdamW(...) and the like.
void add_optimizer(SettingValues& values, const py::object& optimizer) {
  require(py::hasattr(optimizer, "kind") && py::hasattr(optimizer, "settings"),
          "optimizer is a name, or what millrace.AdamW(...) and its like make");
  values["optimizer"] = optimizer.attr("kind").cast<std::string>();
  values["lr"] = text_of(py::object(optimizer.attr("learning_rate")));
  for (const auto& [name, value] : py::dict(optimizer.attr("settings")))
    values[name.cast<std::string>()] = text_of(value);
}

}  // namespace

TrainerOptions options_of(const py::dict& keywords) {
  TrainerOptions options;
  SettingValues values = {{"optimizer", "adamw"}, {"executor", "sequential"}};
  for (const auto& [name, given] : keywords) {
    const Setting& row = row_of(name.cast<std::string>());
    const auto value = py::reinterpret_borrow<py::object>(given);
    if (row.name == "optimizer" && !py::isinstance<py::str>(value))
      add_optimizer(values, value);
    else if (!value.is_none())
      values[std::string(row.name)] = text_of(value);
  }
  apply_settings(options, values);
  const bool saves = options.save.every_steps || options.save.every_time;
  require(!saves || !options.save.folder.empty(),
          fmt::format("save_every {}: there is no folder to save in; give save_folder, too",
                      values["save_every"]));
  return options;
}

}  // namespace millrace::python
