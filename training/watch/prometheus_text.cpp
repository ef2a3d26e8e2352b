// The Prometheus text format: one family after the other, each with its help and type.
#include <array>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <string>

#include "training/watch/record_fields.hpp"

namespace millrace {
namespace {

std::string text_of(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "+Inf" : "-Inf";
  std::array<char, 40> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

void add_head(std::string& text, const char* name, const char* help, const char* type) {
  text += fmt::format("# HELP millrace_{0} {1}\n# TYPE millrace_{0} {2}\n", name, help, type);
}

void add(std::string& text, const char* name, const char* help, const char* type, double value) {
  add_head(text, name, help, type);
  text += fmt::format("millrace_{} {}\n", name, text_of(value));
}

template <class Times, std::size_t n>
void add_ranks(std::string& text,
               const char* name,
               const char* help,
               const StepTotals& totals,
               Times RankRecord::*times,
               const std::array<CauseField<Times>, n>& causes) {
  add_head(text, name, help, "counter");
  for (const RankRecord& rank : totals.ranks())
    for (const auto& cause : causes)
      text += fmt::format("millrace_{}{{rank=\"{}\",copy=\"{}\",cause=\"{}\"}} {}\n",
                          name,
                          rank.rank.value,
                          rank.copy,
                          cause.cause,
                          text_of(rank.*times.*cause.seconds));
}

}  // namespace

std::string prometheus_text(const StepTotals& totals, const StepRecord& last) {
  std::string text;
  const auto gauge = [&](const StepField& field, auto value) {
    const char* name = field.metric == nullptr ? field.name : field.metric;
    if (field.help != nullptr) add(text, name, field.help, "gauge", static_cast<double>(value));
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    add(text, name, help, "counter", static_cast<double>(value));
  };
  for_each_count(last, gauge);
  counter("steps_total", "Steps of this run.", totals.steps());
  counter("skipped_steps_total",
          "Steps of this run that updated nothing: the gradient was not finite, or nothing had "
          "weight.",
          totals.skipped());
  counter("samples_total", "Samples of this run.", totals.samples());
  counter("seconds_total", "Time of the steps of this run.", totals.seconds());
  counter("restarts_total", "Restarts of all ranks.", totals.restarts());
  counter("downtime_seconds_total", "Time without a step that counts.", totals.downtime());
  add(text, "goodput_ratio", "Share of the time in steps that count.", "gauge", totals.goodput());
  for_each_result(last, gauge);
  add_ranks(text,
            "rank_seconds_total",
            "Time of a rank in this run by what it did.",
            totals,
            &RankRecord::times,
            kRankTimes);
  add_ranks(text,
            "bubble_seconds_total",
            "Idle time of a rank inside the passes by cause.",
            totals,
            &RankRecord::bubble,
            kBubble);
  return text;
}

}  // namespace millrace
