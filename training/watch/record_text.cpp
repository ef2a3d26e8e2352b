// Records as JSON lines and CSV, and read back from a log, so that a run that is resumed draws what
// came before it.
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "training/checkpoint/strict_json.hpp"
#include "training/watch/record_fields.hpp"

namespace millrace {
namespace {

/// Name and number; no text where the number is not finite.
using Fields = std::vector<std::pair<const char*, std::string>>;

std::string text_of(auto number) {
  if (!std::isfinite(static_cast<double>(number))) return {};
  std::array<char, 40> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

std::string text_of(bool value) {
  return value ? "true" : "false";
}

Fields fields_of(const StepRecord& record) {
  Fields fields;
  const auto add = [&](const StepField& field, auto value) {
    fields.emplace_back(field.name, text_of(value));
  };
  for_each_count(record, add);
  for_each_result(record, add);
  for_each_of_restarts(record, add);
  return fields;
}

template <class Times, std::size_t n>
Fields fields_of(const Times& times, const std::array<CauseField<Times>, n>& causes) {
  Fields fields;
  for (const auto& cause : causes) fields.emplace_back(cause.key, text_of(times.*cause.seconds));
  return fields;
}

void add_json(std::string& text, const Fields& fields) {
  for (const auto& [name, value] : fields)
    text += std::string("\"") + name + "\":" + (value.empty() ? "null" : value) + ",";
}

std::string prefix_of(int copy, int rank) {
  return (copy > 0 ? "copy" + text_of(copy) + "." : "") + "rank" + text_of(rank) + ".";
}

/// `add(name, value)` for every column.
template <class Add>
void for_each_column(const StepRecord& record, Add add) {
  for (const auto& [name, value] : fields_of(record)) add(name, value);
  for (const RankRecord& rank : record.ranks) {
    const std::string prefix = prefix_of(rank.copy, rank.rank.value);
    for (const auto& [name, value] : fields_of(rank.times, kRankTimes)) add(prefix + name, value);
    for (const auto& [name, value] : fields_of(rank.bubble, kBubble))
      add(prefix + "bubble." + name, value);
  }
}

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

template <class Times, std::size_t n>
void read_times(const Numbers& numbers,
                const std::string& prefix,
                const std::array<CauseField<Times>, n>& causes,
                Times& times) {
  for (const auto& cause : causes) times.*cause.seconds = value_of(numbers, prefix + cause.key);
}

RankRecord rank_of(const Numbers& numbers, const std::string& prefix, int copy, int rank) {
  RankRecord record{Rank{rank}, copy, {}, {}};
  read_times(numbers, prefix, kRankTimes, record.times);
  read_times(numbers, prefix + "bubble.", kBubble, record.bubble);
  return record;
}

/// Reads the numbers that are stored; those that are computed are not lvalues.
struct StepReader {
  const Numbers& numbers;

  void operator()(const StepField& field, std::int64_t& value) const {
    value = whole_of(numbers, field.name);
  }
  void operator()(const StepField& field, double& value) const {
    value = value_of(numbers, field.name);
  }
  void operator()(const StepField& field, bool& value) const {
    value = value_of(numbers, field.name) == 1;
  }
  void operator()(const StepField&, double&&) const {}
};

StepRecord step_of(const Numbers& numbers) {
  StepRecord record;
  record.validates = numbers.contains("validation_loss");
  for_each_count(record, StepReader{numbers});
  for_each_result(record, StepReader{numbers});
  if (numbers.contains("restarts")) for_each_of_restarts(record, StepReader{numbers});
  record.report.loss = {.sum = value_of(numbers, "loss"), .weight = 1};
  return record;
}

/// Ranks in the order of their columns, copy after copy.
StepRecord csv_record(std::string_view line, std::string_view columns) {
  const Numbers numbers = csv_numbers(line, columns);
  StepRecord record = step_of(numbers);
  for (int copy = 0;; ++copy) {
    const auto has = [&](int rank) { return numbers.contains(prefix_of(copy, rank) + "compute"); };
    if (!has(0)) return record;
    for (int rank = 0; has(rank); ++rank)
      record.ranks.push_back(rank_of(numbers, prefix_of(copy, rank), copy, rank));
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

std::string json_line(const StepRecord& record) {
  std::string text = "{";
  add_json(text, fields_of(record));
  text += "\"ranks\":[";
  for (const RankRecord& rank : record.ranks) {
    text += "{\"rank\":" + text_of(rank.rank.value) + ",\"copy\":" + text_of(rank.copy) + ",";
    add_json(text, fields_of(rank.times, kRankTimes));
    text += "\"bubble\":{";
    add_json(text, fields_of(rank.bubble, kBubble));
    text.back() = '}';
    text += "},";
  }
  if (!record.ranks.empty()) text.pop_back();
  return text + "]}";
}

std::string csv_columns(const StepRecord& record) {
  std::string text;
  for_each_column(record, [&](const std::string& name, const std::string&) {
    text += (text.empty() ? "" : ",") + name;
  });
  return text;
}

std::string csv_line(const StepRecord& record) {
  std::string text;
  bool any = false;
  for_each_column(record, [&](const std::string&, const std::string& value) {
    text += (std::exchange(any, true) ? "," : "") + value;
  });
  return text;
}

StepRecord read_record(std::string_view line, std::string_view columns) {
  return columns.empty() ? json_record(line) : csv_record(line, columns);
}

}  // namespace millrace
