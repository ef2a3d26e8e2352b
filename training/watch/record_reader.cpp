// Records read back from a log, so that a run that is resumed draws what came before it.
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/training/records.hpp"
#include "training/checkpoint/strict_json.hpp"

namespace millrace {
namespace {

/// By the name of its CSV column; NaN where the text has none.
using Numbers = std::map<std::string, double, std::less<>>;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

[[noreturn]] void refuse() {
  throw DataError("is no record of a step");
}

double number_in(std::string_view text) {
  if (text.empty()) return kNone;
  if (text == "true" || text == "false") return text == "true" ? 1 : 0;
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) refuse();
  return number;
}

/// The text before the next comma, which is taken away.
std::string_view cell_of(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(','), rest.size());
  const std::string_view cell = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return cell;
}

Numbers csv_numbers(std::string_view line, std::string_view columns) {
  Numbers numbers;
  while (!columns.empty()) {
    const std::string_view name = cell_of(columns);
    numbers[std::string(name)] = number_in(cell_of(line));
  }
  if (!line.empty()) refuse();
  return numbers;
}

void add(Numbers& numbers, const std::string& prefix, const nlohmann::json& object) {
  if (!object.is_object()) refuse();
  for (const auto& [name, value] : object.items()) {
    if (value.is_object())
      add(numbers, prefix + name + ".", value);
    else if (value.is_number())
      numbers[prefix + name] = value.get<double>();
    else if (value.is_boolean())
      numbers[prefix + name] = value.get<bool>() ? 1 : 0;
    else if (value.is_null())
      numbers[prefix + name] = kNone;
    else if (!value.is_array())
      refuse();
  }
}

double value_of(const Numbers& numbers, const std::string& name) {
  const auto found = numbers.find(name);
  if (found == numbers.end()) refuse();
  return found->second;
}

std::int64_t whole_of(const Numbers& numbers, const std::string& name) {
  const double value = value_of(numbers, name);
  constexpr double kMost = 9.0e18;
  if (!(value >= 0 && value <= kMost)) refuse();
  return static_cast<std::int64_t>(value);
}

RankRecord rank_of(const Numbers& numbers, const std::string& prefix, int copy, int rank) {
  const auto at = [&](const char* name) { return value_of(numbers, prefix + name); };
  RankRecord record{Rank{rank}, copy, {}, {}};
  record.times = {at("compute"),
                  at("wait"),
                  at("transfer"),
                  at("data"),
                  at("optimizer"),
                  at("save"),
                  at("other")};
  record.bubble = {at("bubble.warm_up"),
                   at("bubble.drain"),
                   at("bubble.imbalance"),
                   at("bubble.dependency"),
                   at("bubble.transfer"),
                   at("bubble.delay")};
  return record;
}

StepRecord step_of(const Numbers& numbers) {
  StepRecord record;
  StepReport& report = record.report;
  record.step = whole_of(numbers, "step");
  report.global_step = whole_of(numbers, "update");
  report.epoch = whole_of(numbers, "epoch");
  report.batch = whole_of(numbers, "batch");
  report.samples = whole_of(numbers, "samples");
  report.loss = {.sum = value_of(numbers, "loss"), .weight = 1};
  report.gradient_norm = value_of(numbers, "gradient_norm");
  report.clip_factor = value_of(numbers, "clip_factor");
  report.loss_scale = value_of(numbers, "loss_scale");
  report.skipped = value_of(numbers, "skipped") == 1;
  report.learning_rate = value_of(numbers, "learning_rate");
  record.seconds = value_of(numbers, "seconds");
  record.makespan = value_of(numbers, "makespan");
  return record;
}

/// Ranks in the order of their columns, copy after copy.
StepRecord csv_record(std::string_view line, std::string_view columns) {
  const Numbers numbers = csv_numbers(line, columns);
  StepRecord record = step_of(numbers);
  for (int copy = 0;; ++copy) {
    const std::string of_copy = copy > 0 ? "copy" + std::to_string(copy) + "." : "";
    const auto prefix = [&](int rank) { return of_copy + "rank" + std::to_string(rank) + "."; };
    if (!numbers.contains(prefix(0) + "compute")) return record;
    for (int rank = 0; numbers.contains(prefix(rank) + "compute"); ++rank)
      record.ranks.push_back(rank_of(numbers, prefix(rank), copy, rank));
  }
}

StepRecord json_record(std::string_view line) {
  const nlohmann::json document = parse_strictly(line, "the record");
  Numbers numbers;
  add(numbers, "", document);
  StepRecord record = step_of(numbers);
  if (!document.contains("ranks") || !document["ranks"].is_array()) refuse();
  for (const nlohmann::json& rank : document["ranks"]) {
    Numbers of_rank;
    add(of_rank, "", rank);
    record.ranks.push_back(rank_of(of_rank,
                                   "",
                                   static_cast<int>(whole_of(of_rank, "copy")),
                                   static_cast<int>(whole_of(of_rank, "rank"))));
  }
  return record;
}

}  // namespace

StepRecord read_record(std::string_view line, std::string_view columns) {
  return columns.empty() ? json_record(line) : csv_record(line, columns);
}

}  // namespace millrace
