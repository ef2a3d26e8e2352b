// Reading and writing cost files. A table says which member of Cost a field fills, so that reading,
// writing and the check of lengths cannot drift apart.
#include "millrace/scheduler/plan/cost_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "plan/text/json_fault.hpp"

namespace millrace {

namespace {

using nlohmann::json;

constexpr int kCostsVersion = 1;
constexpr std::int64_t kMost = 1 << 20;

struct ListField {
  const char* name;
  std::vector<double> Cost::*member;
  bool per_slice;  // a time: S x slices numbers; else S numbers
  bool required;
  bool may_be_negative = false;
};

constexpr std::array<ListField, 11> kLists = {{
    {"forward", &Cost::forward, true, true},
    {"input", &Cost::backward_input, true, true},
    {"weight", &Cost::backward_weight, true, true},
    {"backward", &Cost::backward, true, false},
    {"recompute", &Cost::recompute, true, false},
    {"memory_forward", &Cost::memory_forward, false, false, true},
    {"memory_input_peak", &Cost::memory_input_peak, false, false, true},
    {"memory_input", &Cost::memory_input, false, false, true},
    {"memory_weight", &Cost::memory_weight, false, false, true},
    {"memory_boundary", &Cost::memory_boundary, false, false, true},
    {"gradient_bytes", &Cost::gradient_bytes, false, false},
}};

struct NumberField {
  const char* name;
  double Cost::*member;
};

constexpr std::array<NumberField, 5> kNumbers = {{
    {"optimizer", &Cost::optimizer},
    {"after_passes", &Cost::after_passes},
    {"latency", &Cost::latency},
    {"bandwidth", &Cost::bytes_per_tick},
    {"message_bytes", &Cost::message_bytes},
}};

constexpr std::array<const char*, 6> kOthers = {
    "millrace_costs", "unit", "assumed", "ranks", "chunks", "slices"};

bool is_known(std::string_view name) {
  const auto called = [&](const auto& field) { return name == field.name; };
  return std::any_of(kLists.begin(), kLists.end(), called) ||
         std::any_of(kNumbers.begin(), kNumbers.end(), called) ||
         std::any_of(
             kOthers.begin(), kOthers.end(), [&](const char* other) { return name == other; });
}

const json& field(const json& document, std::string_view name) {
  const auto found = document.find(name);
  if (found == document.end())
    throw JsonFault{{}, "the field '" + std::string(name) + "' is missing"};
  return *found;
}

int count(const json& document, std::string_view name) {
  const json& value = field(document, name);
  if (!value.is_number_integer() || value < 1 || value > kMost)
    throw JsonFault{
        {name},
        "expected a whole number from 1 to " + std::to_string(kMost) + ", found " + value.dump()};
  return value.get<int>();
}

std::string text(const json& document, std::string_view name) {
  const json& value = field(document, name);
  if (!value.is_string()) throw JsonFault{{name}, "expected a word, found " + value.dump()};
  return value.get<std::string>();
}

double number(const json& value, std::vector<JsonStep> path, bool may_be_negative) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) ||
      (!may_be_negative && value.get<double>() < 0))
    throw JsonFault{std::move(path),
                    std::string("expected a number") + (may_be_negative ? "" : " of at least 0") +
                        ", found " + value.dump()};
  return value.get<double>();
}

void read_list(const json& document, const ListField& list, CostFile& file) {
  const auto found = document.find(list.name);
  if (found == document.end() && !list.required) return;
  const json& values = field(document, list.name);
  const auto expected = static_cast<std::size_t>(file.stages) *
                        static_cast<std::size_t>(list.per_slice ? file.cost.slices : 1);
  if (!values.is_array() || values.size() != expected)
    throw JsonFault{{list.name},
                    "expected a list of " + std::to_string(expected) + " numbers, found " +
                        (values.is_array() ? std::to_string(values.size()) : values.dump())};
  for (std::size_t i = 0; i < expected; ++i)
    (file.cost.*list.member).push_back(number(values[i], {list.name, i}, list.may_be_negative));
}

CostFile read_document(const json& document) {
  if (!document.is_object()) throw JsonFault{{}, "a cost file is a JSON object"};
  const json& version = field(document, "millrace_costs");
  if (version != kCostsVersion)
    throw JsonFault{
        {"millrace_costs"},
        "expected version " + std::to_string(kCostsVersion) + ", found " + version.dump()};
  for (const auto& [name, value] : document.items())
    if (!is_known(name))
      throw JsonFault{{std::string_view(name)}, "the field '" + name + "' is unknown"};
  CostFile file;
  file.unit = text(document, "unit");
  if (document.contains("assumed")) file.assumed = text(document, "assumed");
  file.ranks = count(document, "ranks");
  const int chunks = count(document, "chunks");
  if (chunks > kMost / file.ranks)
    throw JsonFault{{"chunks"},
                    "ranks x chunks is at most " + std::to_string(kMost) + ", found " +
                        std::to_string(file.ranks) + " x " + std::to_string(chunks)};
  file.stages = file.ranks * chunks;
  file.cost.slices = document.contains("slices") ? count(document, "slices") : 1;
  for (const ListField& list : kLists) read_list(document, list, file);
  for (const NumberField& known : kNumbers)
    if (document.contains(known.name))
      file.cost.*known.member = number(document[known.name], {known.name}, false);
  return file;
}

}  // namespace

ParsedCosts read_costs(std::string_view text) {
  const ParsedJson parsed = parse_json(text);
  if (parsed.fault) return {std::nullopt, {*parsed.fault}};
  try {
    return {read_document(parsed.document), {}};
  } catch (const JsonFault& fault) {
    return {std::nullopt, {located(text, fault.path, fault.sentence)}};
  }
}

std::string write_costs(const CostFile& file) {
  const Cost& cost = file.cost;
  require(file.ranks >= 1 && file.stages >= file.ranks && file.stages % file.ranks == 0,
          "a cost file has p x v stages, got " + std::to_string(file.stages) + " stages of " +
              std::to_string(file.ranks) + " ranks");
  require(cost.rank_speed.empty() && cost.link_latency.empty() &&
              cost.link_bytes_per_tick.empty() && !cost.pair && cost.cores == 0 &&
              cost.data_parallel == 1 && cost.ticks_per_unit == 1,
          "a cost file has no rank speeds, costs per link, pairs, processors or copies of the "
          "pipeline, and one tick per unit");
  nlohmann::ordered_json document;
  document["millrace_costs"] = kCostsVersion;
  document["unit"] = file.unit;
  if (!file.assumed.empty()) document["assumed"] = file.assumed;
  document["ranks"] = file.ranks;
  document["chunks"] = file.stages / file.ranks;
  document["slices"] = cost.slices;
  for (const ListField& list : kLists) {
    const std::vector<double>& values = cost.*list.member;
    if (values.empty() && !list.required) continue;
    const auto expected = static_cast<std::size_t>(file.stages) *
                          static_cast<std::size_t>(list.per_slice ? cost.slices : 1);
    require(values.size() == expected,
            std::string("the costs '") + list.name + "' need " + std::to_string(expected) +
                " numbers, got " + std::to_string(values.size()));
    document[list.name] = values;
  }
  for (const NumberField& known : kNumbers)
    if (cost.*known.member != 0) document[known.name] = cost.*known.member;
  return document.dump(1) + "\n";
}

}  // namespace millrace
