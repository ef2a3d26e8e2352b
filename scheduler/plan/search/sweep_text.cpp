// Rows of a sweep as CSV and as JSON. One table names the columns, so that both have the same.
#include <nlohmann/json.hpp>

#include "millrace/scheduler/plan/sweep.hpp"
#include "plan/text/number_text.hpp"

namespace millrace {

namespace {

using nlohmann::ordered_json;

/// The columns with their values; null where there is none.
ordered_json columns_of(const SweepRow& row) {
  const SweepPoint& point = row.point;
  const Costs& costs = point.costs;
  const MeanStage mean = mean_stage(costs);
  const auto count = [](std::optional<int> value) {
    return value ? ordered_json(*value) : ordered_json();
  };
  ordered_json columns = {
      {"schedule", point.schedule},
      {"p", point.ranks},
      {"m", point.micro_batches},
      {"v", count(point.chunks)},
      {"q", count(point.slices)},
      {"d", costs.data_parallel},
      {"accumulate", costs.accumulate},
      {"f", mean.forward},
      {"i", mean.input},
      {"w", mean.weight},
      {"latency", mean.latency},
      {"bandwidth", mean.bandwidth},
      {"gradient_bytes", mean.gradient_bytes},
      {"mem_f", mean.memory_forward},
      {"mem_i", mean.memory_input},
      {"mem_w", mean.memory_weight},
      {"costs", costs.file ? ordered_json(costs.file_name) : ordered_json()},
      {"memory_limit", point.memory_limit ? ordered_json(*point.memory_limit) : ordered_json()},
  };
  using Field = ResultField<Report>;
  for (const Field& field : result_fields<Report>()) {
    if (!field.is_in(Field::Sweep)) continue;
    const bool none = !row.report || (field.is_in(Field::PerPass) && costs.accumulate > 1);
    columns[std::string(field.name)] = none ? ordered_json() : ordered_json(field.of(*row.report));
  }
  for (const auto& [name, holds] : {std::pair("same_bits", row.same_bits), {"valid", row.valid}})
    columns[name] = row.report ? ordered_json(holds) : ordered_json();
  columns["reason"] = row.reason;
  return columns;
}

std::string cell(const ordered_json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return plan::number_text(value.get<double>(), 15);
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char byte : text) result += byte == '"' ? std::string("\"\"") : std::string(1, byte);
  return result + "\"";
}

}  // namespace

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& one : cells) line += (&one == &cells.front() ? "" : ",") + quoted(one);
  return line + "\n";
}

std::string sweep_csv_head() {
  const ordered_json columns = columns_of({});
  std::vector<std::string> names;
  for (const auto& [name, value] : columns.items()) names.push_back(name);
  return csv_line(names);
}

std::string sweep_csv(const SweepRow& row) {
  const ordered_json columns = columns_of(row);
  std::vector<std::string> cells;
  for (const auto& [name, value] : columns.items()) cells.push_back(cell(value));
  return csv_line(cells);
}

std::string sweep_json(const SweepRow& row) {
  return columns_of(row).dump(-1, ' ', true, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace millrace
