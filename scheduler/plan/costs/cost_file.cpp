// Cost files, read and written by the table of costs.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "plan/text/json_fault.hpp"

namespace millrace {

namespace {

using nlohmann::json;

constexpr int kCostsVersion = 1;
constexpr std::int64_t kMost = 1 << 20;

using InFile = CostMember::InFile;
using Members = std::span<const CostMember>;
using Numbers = std::vector<double>;

bool is_required(const CostMember& row) {
  return row.name == "forward" || row.name == "input" || row.name == "weight";
}

/// How many numbers the list of a row has in the file.
std::size_t length_of(const CostMember& row, const Costs& costs) {
  const auto stages = static_cast<std::size_t>(costs.stages);
  if (row.in_file == InFile::Boundaries) return stages - 1;
  return stages *
         static_cast<std::size_t>(row.in_file == InFile::StagesAndSlices ? costs.slices : 1);
}

constexpr std::array<std::string_view, 6> kOthers = {
    "millrace_costs", "unit", "assumed", "ranks", "chunks", "slices"};

bool is_known(std::string_view name, Members members) {
  return std::ranges::find(kOthers, name) != kOthers.end() ||
         std::ranges::any_of(members, [&](const CostMember& row) {
           return row.in_file != InFile::No && row.name == name;
         });
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
        {name}, fmt::format("expected a whole number from 1 to {}, found {}", kMost, value.dump())};
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
                    fmt::format("expected a number{}, found {}",
                                may_be_negative ? "" : " of at least 0",
                                value.dump())};
  return value.get<double>();
}

Numbers numbers(const json& document, const CostMember& row, const Costs& costs) {
  const bool may_be_negative = row.least < 0;
  const json& values = field(document, row.name);
  const bool one = row.in_file == InFile::Boundaries && !values.is_array();
  if (one || row.in_file == InFile::Number) return {number(values, {row.name}, may_be_negative)};
  const std::size_t expected = length_of(row, costs);
  if (!values.is_array() || values.size() != expected)
    throw JsonFault{{row.name},
                    fmt::format("expected a list of {} numbers, found {}",
                                expected,
                                values.is_array() ? std::to_string(values.size()) : values.dump())};
  Numbers list;
  for (std::size_t i = 0; i < expected; ++i)
    list.push_back(number(values[i], {row.name, i}, may_be_negative));
  return list;
}

void read_member(const json& document, const CostMember& row, Costs& costs) {
  if (row.in_file == InFile::No || (!document.contains(row.name) && !is_required(row))) return;
  const Numbers values = numbers(document, row, costs);
  if (const auto* list = std::get_if<Numbers Costs::*>(&row.member))
    costs.** list = values;
  else
    costs.*std::get<std::optional<double> Costs::*>(row.member) = values.front();
}

void require_version(const json& document) {
  if (!document.is_object()) throw JsonFault{{}, "a cost file is a JSON object"};
  const json& version = field(document, "millrace_costs");
  if (version != kCostsVersion)
    throw JsonFault{{"millrace_costs"},
                    fmt::format("expected version {}, found {}", kCostsVersion, version.dump())};
}

Costs read_document(const json& document, Members members) {
  require_version(document);
  for (const auto& [name, value] : document.items())
    if (!is_known(name, members))
      throw JsonFault{{std::string_view(name)}, "the field '" + name + "' is unknown"};
  Costs costs;
  costs.unit = text(document, "unit");
  if (document.contains("assumed")) costs.assumed = text(document, "assumed");
  costs.ranks = count(document, "ranks");
  const int chunks = count(document, "chunks");
  if (chunks > kMost / costs.ranks)
    throw JsonFault{
        {"chunks"},
        fmt::format("ranks x chunks is at most {}, found {} x {}", kMost, costs.ranks, chunks)};
  costs.stages = costs.ranks * chunks;
  if (document.contains("slices")) costs.slices = count(document, "slices");
  for (const CostMember& row : members) read_member(document, row, costs);
  return costs;
}

/// The numbers of a member; none where it is unset.
Numbers given_numbers(const Costs& costs, const CostMember& row) {
  if (const auto* list = std::get_if<Numbers Costs::*>(&row.member)) return costs.**list;
  const auto* number = std::get_if<std::optional<double> Costs::*>(&row.member);
  return number != nullptr && costs.**number ? Numbers{*(costs.**number)} : Numbers{};
}

/// Whether the member has another value than that of no costs.
bool is_set(const Costs& costs, const CostMember& row) {
  const Costs none;
  return std::visit([&](auto member) { return costs.*member != none.*member; }, row.member);
}

void write_member(const Costs& costs, const CostMember& row, nlohmann::ordered_json& document) {
  require(row.in_file != InFile::No || !is_set(costs, row),
          fmt::format("{} is set; a cost file does not hold it", row.name));
  const Numbers values = given_numbers(costs, row);
  const bool one = row.in_file == InFile::Boundaries && values.size() == 1;
  if (one || row.in_file == InFile::Number) {
    require(values.size() <= 1, fmt::format("a cost file holds one {} for all links", row.name));
    if (!values.empty() && values.front() != 0) document[std::string(row.name)] = values.front();
  } else if (row.in_file != InFile::No && (!values.empty() || is_required(row))) {
    require(values.size() == length_of(row, costs),
            fmt::format("the costs '{}' need {} numbers, got {}",
                        row.name,
                        length_of(row, costs),
                        values.size()));
    document[std::string(row.name)] = values;
  }
}

}  // namespace

ParsedCosts read_costs(std::string_view text, Members members) {
  const ParsedJson parsed = parse_json(text);
  if (parsed.fault) return {std::nullopt, {*parsed.fault}};
  try {
    return {read_document(parsed.document, members), {}};
  } catch (const JsonFault& fault) {
    return {std::nullopt, {located(text, fault.path, fault.message)}};
  }
}

std::string write_costs(const Costs& costs, Members members) {
  require(
      costs.ranks >= 1 && costs.stages >= costs.ranks && costs.stages % costs.ranks == 0,
      fmt::format(
          "a cost file has p x v stages, got {} stages of {} ranks", costs.stages, costs.ranks));
  nlohmann::ordered_json document;
  document["millrace_costs"] = kCostsVersion;
  document["unit"] = costs.unit;
  if (!costs.assumed.empty()) document["assumed"] = costs.assumed;
  document["ranks"] = costs.ranks;
  document["chunks"] = costs.stages / costs.ranks;
  document["slices"] = costs.slices;
  for (const CostMember& row : members) write_member(costs, row, document);
  return document.dump(1) + "\n";
}

}  // namespace millrace
