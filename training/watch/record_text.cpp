// Records as JSON lines and CSV: one list of fields for both, so that they cannot differ.
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "millrace/training/records.hpp"

namespace millrace {
namespace {

/// Name and number; no text where the number is not finite.
using Fields = std::vector<std::pair<const char*, std::string>>;

template <class Number>
std::string text_of(Number number) {
  std::array<char, 40> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

std::string finite(double number) {
  return std::isfinite(number) ? text_of(number) : std::string();
}

Fields fields_of(const StepRecord& record) {
  const StepReport& report = record.report;
  return {{"step", text_of(record.step)},
          {"update", text_of(report.global_step)},
          {"epoch", text_of(report.epoch)},
          {"batch", text_of(report.batch)},
          {"samples", text_of(report.samples)},
          {"loss", finite(report.mean_loss())},
          {"gradient_norm", finite(report.gradient_norm)},
          {"clip_factor", finite(report.clip_factor)},
          {"loss_scale", finite(report.loss_scale)},
          {"skipped", report.skipped ? "true" : "false"},
          {"learning_rate", finite(report.learning_rate)},
          {"seconds", finite(record.seconds)},
          {"samples_per_second", finite(record.samples_per_second())},
          {"makespan", finite(record.makespan)},
          {"bubble", finite(record.bubble())}};
}

Fields fields_of(const RankTimes& times) {
  return {{"compute", finite(times.compute)},
          {"wait", finite(times.wait)},
          {"transfer", finite(times.transfer)},
          {"data", finite(times.data)},
          {"optimizer", finite(times.optimizer)},
          {"save", finite(times.save)},
          {"other", finite(times.other)}};
}

Fields fields_of(const Bubble& bubble) {
  return {{"warm_up", finite(bubble.warm_up)},
          {"drain", finite(bubble.drain)},
          {"imbalance", finite(bubble.imbalance)},
          {"dependency", finite(bubble.dependency)},
          {"transfer", finite(bubble.transfer)},
          {"delay", finite(bubble.delay)}};
}

void add_json(std::string& text, const Fields& fields) {
  for (const auto& [name, value] : fields)
    text += std::string("\"") + name + "\":" + (value.empty() ? "null" : value) + ",";
}

/// `add(name, value)` for every column.
template <class Add>
void for_each_column(const StepRecord& record, Add add) {
  for (const auto& [name, value] : fields_of(record)) add(name, value);
  for (const RankRecord& rank : record.ranks) {
    const std::string copy = rank.copy > 0 ? "copy" + text_of(rank.copy) + "." : "";
    const std::string prefix = copy + "rank" + text_of(rank.rank.value) + ".";
    for (const auto& [name, value] : fields_of(rank.times)) add(prefix + name, value);
    for (const auto& [name, value] : fields_of(rank.bubble)) add(prefix + "bubble." + name, value);
  }
}

}  // namespace

std::string json_line(const StepRecord& record) {
  std::string text = "{";
  add_json(text, fields_of(record));
  text += "\"ranks\":[";
  for (const RankRecord& rank : record.ranks) {
    text += "{\"rank\":" + text_of(rank.rank.value) + ",\"copy\":" + text_of(rank.copy) + ",";
    add_json(text, fields_of(rank.times));
    text += "\"bubble\":{";
    add_json(text, fields_of(rank.bubble));
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

}  // namespace millrace
