// The Prometheus text format: one family after the other, each with its help and type.
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "millrace/training/records.hpp"

namespace millrace {
namespace {

std::string text_of(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "+Inf" : "-Inf";
  std::array<char, 40> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

/// A family without labels: its name has the type that its end says.
void add(std::string& text, const std::string& name, const std::string& help, double value) {
  const bool counts = name.size() > 6 && name.compare(name.size() - 6, 6, "_total") == 0;
  text += "# HELP millrace_" + name + " " + help + "\n# TYPE millrace_" + name +
          (counts ? " counter\n" : " gauge\n") + "millrace_" + name + " " + text_of(value) + "\n";
}

using Causes = std::initializer_list<std::pair<const char*, double>>;

void add_causes(std::string& text, const std::string& name, const RankRecord& rank, Causes causes) {
  for (const auto& [cause, seconds] : causes)
    text += "millrace_" + name + "{rank=\"" + std::to_string(rank.rank.value) + "\",copy=\"" +
            std::to_string(rank.copy) + "\",cause=\"" + cause + "\"} " + text_of(seconds) + "\n";
}

void add_head(std::string& text, const std::string& name, const std::string& help) {
  text += "# HELP millrace_" + name + " " + help + "\n# TYPE millrace_" + name + " counter\n";
}

void add_ranks(std::string& text, const StepTotals& totals) {
  add_head(text, "rank_seconds_total", "Time of a rank in this run by what it did.");
  for (const RankRecord& rank : totals.ranks())
    add_causes(text,
               "rank_seconds_total",
               rank,
               {{"compute", rank.times.compute},
                {"wait", rank.times.wait},
                {"transfer", rank.times.transfer},
                {"data", rank.times.data},
                {"optimizer", rank.times.optimizer},
                {"save", rank.times.save},
                {"other", rank.times.other}});
  add_head(text, "bubble_seconds_total", "Idle time of a rank inside the passes by cause.");
  for (const RankRecord& rank : totals.ranks())
    add_causes(text,
               "bubble_seconds_total",
               rank,
               {{"warm-up", rank.bubble.warm_up},
                {"drain", rank.bubble.drain},
                {"imbalance", rank.bubble.imbalance},
                {"dependency", rank.bubble.dependency},
                {"transfer", rank.bubble.transfer},
                {"delay", rank.bubble.delay}});
}

}  // namespace

std::string prometheus_text(const StepTotals& totals, const StepRecord& last) {
  const StepReport& report = last.report;
  std::string text;
  add(text, "step", "Mini-batches run in this training.", static_cast<double>(last.step));
  add(text, "update", "Updates done in this training.", static_cast<double>(report.global_step));
  add(text, "epoch", "Epoch of the last step, from 0.", static_cast<double>(report.epoch));
  add(text, "steps_total", "Steps of this run.", static_cast<double>(totals.steps()));
  add(text,
      "skipped_steps_total",
      "Steps of this run that updated nothing: the gradient was not finite, or nothing had weight.",
      static_cast<double>(totals.skipped()));
  add(text, "samples_total", "Samples of this run.", static_cast<double>(totals.samples()));
  add(text, "seconds_total", "Time of the steps of this run.", totals.seconds());
  add(text, "loss", "Mean loss of the last step.", report.mean_loss());
  add(text, "gradient_norm", "Before clipping, of the last step.", report.gradient_norm);
  add(text, "clip_factor", "What the last gradient was multiplied by.", report.clip_factor);
  add(text, "loss_scale", "Of the last step.", report.loss_scale);
  add(text, "learning_rate", "Of the last step.", report.learning_rate);
  add(text, "step_seconds", "Time of the last step.", last.seconds);
  add(text, "samples_per_second", "In the last step.", last.samples_per_second());
  add(text, "bubble_ratio", "Idle share of the last step's passes.", last.bubble());
  add_ranks(text, totals);
  return text;
}

}  // namespace millrace
