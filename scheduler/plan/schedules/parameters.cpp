// Values of the table's parameters as text, there and back.
#include "millrace/scheduler/plan/parameters.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "plan/text/number_text.hpp"

namespace millrace {

namespace {

constexpr std::array<std::string_view, 2> kOrders = {"fifo", "lifo"};

/// Calls the function of `functions` that takes the type of the parameter's value.
template <class... Functions>
struct ByType : Functions... {
  using Functions::operator()...;
};

template <class... Functions>
ByType(Functions...) -> ByType<Functions...>;

std::string text_of(int value) {
  return std::to_string(value);
}

std::string text_of(double value) {
  return plan::number_text(value);
}

std::string text_of(BackwardOrder value) {
  return std::string(kOrders.at(static_cast<std::size_t>(value)));
}

template <class Value>
std::optional<std::string> text_of(const std::optional<Value>& value) {
  return value ? std::optional(text_of(*value)) : std::nullopt;
}

template <class Number>
std::optional<Number> number_from(std::string_view text, double least) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool fits = error == std::errc() && stop == end && static_cast<double>(value) >= least;
  return fits && std::isfinite(static_cast<double>(value)) ? std::optional(value) : std::nullopt;
}

std::optional<BackwardOrder> order_from(std::string_view text) {
  const auto* const found = std::find(kOrders.begin(), kOrders.end(), text);
  if (found == kOrders.end()) return std::nullopt;
  return static_cast<BackwardOrder>(found - kOrders.begin());
}

/// Puts what the text says into the field; whether it says something that is allowed.
bool read_into(ScheduleOptions& options,
               const ScheduleParameter& parameter,
               std::string_view text) {
  const auto put = [&](auto field, auto value) {
    if (value) options.*field = *value;
    return value.has_value();
  };
  return std::visit(
      ByType{[&](std::optional<BackwardOrder> ScheduleOptions::*field) {
               return put(field, order_from(text));
             },
             [&](std::optional<double> ScheduleOptions::*field) {
               return put(field, number_from<double>(text, parameter.least));
             },
             [&](auto field) { return put(field, number_from<int>(text, parameter.least)); }},
      parameter.field);
}

}  // namespace

std::string allowed_values(const ScheduleParameter& parameter) {
  const std::string least = std::to_string(parameter.least);
  return std::visit(ByType{[](std::optional<BackwardOrder> ScheduleOptions::* /*field*/) {
                             return std::string("fifo or lifo");
                           },
                           [&](std::optional<double> ScheduleOptions::* /*field*/) {
                             return "a number from " + least;
                           },
                           [&](auto /*field*/) {
                             return "an integer from " + least + " to " +
                                    std::to_string(std::numeric_limits<int>::max());
                           }},
                    parameter.field);
}

std::string default_value(const ScheduleParameter& parameter) {
  static const ScheduleOptions kUnset;
  if (const auto value = value_of(kUnset, parameter)) return *value;
  if (!parameter.preset) return "";
  if (std::holds_alternative<std::optional<BackwardOrder> ScheduleOptions::*>(parameter.field))
    return text_of(static_cast<BackwardOrder>(*parameter.preset));
  return text_of(*parameter.preset);
}

std::optional<std::string> value_of(const ScheduleOptions& options,
                                    const ScheduleParameter& parameter) {
  return std::visit(
      [&](auto field) -> std::optional<std::string> { return text_of(options.*field); },
      parameter.field);
}

void set_value(ScheduleOptions& options,
               const ScheduleParameter& parameter,
               std::string_view text) {
  if (!read_into(options, parameter, text))
    throw InvalidParameter(named(parameter.name) + " " + std::string(text) + ": must be " +
                           allowed_values(parameter));
}

void clear_value(ScheduleOptions& options, const ScheduleParameter& parameter) {
  std::visit([&](auto field) { options.*field = ScheduleOptions().*field; }, parameter.field);
}

std::vector<ParameterValue> set_values(const ScheduleOptions& options) {
  std::vector<ParameterValue> values;
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (!std::holds_alternative<int ScheduleOptions::*>(parameter.field))
      if (const auto value = value_of(options, parameter))
        values.push_back({parameter.name, *value});
  return values;
}

std::string to_string(const std::vector<ParameterValue>& values) {
  std::string text;
  for (const auto& [name, value] : values) {
    const std::string_view symbol = kScheduleParameters[parameter_index(name)].symbol;
    text += (text.empty() ? "" : " ") + std::string(symbol.empty() ? name : symbol) + "=" + value;
  }
  return text;
}

}  // namespace millrace
