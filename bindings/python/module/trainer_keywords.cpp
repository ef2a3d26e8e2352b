// The keywords of a Trainer in Python, by the table of settings.
#include <fmt/format.h>
#include <pybind11/pybind11.h>

#include "millrace/core/error.hpp"
#include "millrace/training/settings.hpp"
#include "module/bindings.hpp"

namespace millrace::python {

namespace {

/// All digits.
std::string number_text(const py::object& number) {
  return py::repr(py::float_(number)).cast<std::string>();
}

/// As a setting is written; an item of a list may be a list of names that are one weight.
std::string list_text(const py::object& list) {
  std::string text;
  for (const py::handle item : list) {
    const bool is_text = py::isinstance<py::str>(item);
    if (!text.empty()) text += is_text ? " " : "; ";
    text +=
        is_text ? item.cast<std::string>() : py::str(" = ").attr("join")(item).cast<std::string>();
  }
  return text;
}

/// As a setting is written. Throws InvalidArgument for another type.
std::string text_of(const Setting& row, const py::object& value) {
  const bool is_switch = PyBool_Check(value.ptr()) != 0;
  const bool is_integer = !is_switch && PyIndex_Check(value.ptr()) != 0;
  const bool is_text = py::isinstance<py::str>(value);
  const char* expected = "a str";
  switch (row.value.kind) {
    case SettingKind::Integer:
      if (is_integer) return py::str(py::int_(value)).cast<std::string>();
      expected = "an int";
      break;
    case SettingKind::Real:
      if (!is_switch && PyNumber_Check(value.ptr()) != 0) return number_text(value);
      expected = "a float";
      break;
    case SettingKind::Text:
      if (is_switch) return value.cast<bool>() ? "true" : "false";
      if (is_integer || is_text) return py::str(value).cast<std::string>();
      break;
    case SettingKind::Switch:
      if (is_switch) return value.cast<bool>() ? "true" : "false";
      expected = "a bool";
      break;
    case SettingKind::List:
      if (!is_text && py::hasattr(value, "__iter__")) return list_text(value);
      expected = "a list of str";
      break;
  }
  throw InvalidArgument(
      py::str("Trainer: {} is {:.60}, a {}; expected {}")
          .format(row.name, py::repr(value), py::type::of(value).attr("__name__"), expected)
          .cast<std::string>());
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
  values["lr"] = number_text(optimizer.attr("learning_rate"));
  for (const auto& [name, value] : py::dict(optimizer.attr("settings")))
    values[name.cast<std::string>()] = number_text(py::reinterpret_borrow<py::object>(value));
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
      values[std::string(row.name)] = text_of(row, value);
  }
  apply_settings(options, values);
  require(options.save.every_steps == 0 || !options.save.folder.empty(),
          fmt::format("save_every {}: there is no folder to save in; give save_folder, too",
                      options.save.every_steps));
  return options;
}

}  // namespace millrace::python
