// Progress lines.
#include "cli/train/progress.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <numbers>
#include <ostream>
#include <string>
#include <utility>

namespace millrace::cli {

namespace {

constexpr double kSecondsBetweenMoves = 0.05, kSecondsBetweenLines = 60;

/// "97 samples/s", and of samples of lengths of their own "  8911 tokens/s  padding 4.2 %".
template <class Report>
std::string pace_of(const Report& report, bool padded) {
  const auto rate = [&](std::int64_t count) {
    return report.seconds > 0 ? static_cast<double>(count) / report.seconds : 0;
  };
  std::string text = fmt::format("{:.0f} samples/s", rate(report.samples));
  if (padded)
    text += fmt::format("  {:.0f} tokens/s  padding {:.1f} %",
                        rate(report.loss.evaluated),
                        100 * padding_share(report.loss.evaluated, report.positions));
  return text;
}

}  // namespace

double padding_share(std::int64_t tokens, std::int64_t positions) {
  return positions > 0 ? 1 - static_cast<double>(tokens) / static_cast<double>(positions) : 0;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::max(seconds, 0.0) + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

Progress::Progress(std::ostream& stream, ProgressOptions options)
    : stream_(stream),
      options_(std::move(options)),
      began_(options_.now()),
      drawn_(began_ - kSecondsBetweenLines) {}

std::string Progress::line(double mean_loss,
                           const std::string& pace,
                           const std::string& left) const {
  std::string text =
      fmt::format("epoch {}/{}{}  step {}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {}  {} {:.1f} %",
                  last_.epoch + 1,
                  options_.epochs,
                  left,
                  last_.global_step,
                  mean_loss,
                  last_.gradient_norm,
                  last_.learning_rate,
                  pace,
                  options_.idle,
                  100 * bubble_) +
      validation_;
  if (last_.loss_scale != 1) text += fmt::format("  scale {:.0f}", last_.loss_scale);
  if (last_.skipped)
    text += last_.has_no_weight() ? "  (all targets weigh 0: skipped)"
                                  : "  (gradient not finite: skipped)";
  return text;
}

/// By the mean time of a step so far, everything between steps included.
std::string Progress::left() const {
  const std::int64_t done = last_.epoch * options_.batches_per_epoch + last_.batch + 1;
  const double per_step = (options_.now() - began_) / static_cast<double>(steps_);
  return ", " + duration_text(per_step * static_cast<double>(options_.steps - done)) + " left";
}

void Progress::draw(std::string text) {
  const std::size_t width = text.size();
  if (options_.moves && width < width_) text.append(width_ - width, ' ');
  width_ = width;
  stream_ << (options_.moves ? "\r" : "") << text;
  drawn_ = options_.now();
}

void Progress::step(const StepReport& report, double bubble) {
  last_ = report;
  bubble_ = bubble;
  ++steps_;
  if (!options_.moves || options_.now() - drawn_ < kSecondsBetweenMoves) return;
  std::string text = line(report.mean_loss(), pace_of(report, options_.padded), left());
  if (options_.columns > 1) text.resize(std::min(text.size(), options_.columns - 1));
  draw(std::move(text));
  stream_ << std::flush;
}

void Progress::validation(const ValidationReport& report, bool is_text) {
  const double loss = report.score.mean_loss();
  validation_ = fmt::format("  validation loss {:.4f}", loss);
  validation_ += is_text ? fmt::format("  {:.4f} bits per character", loss / std::numbers::ln2)
                         : fmt::format("  accuracy {:.2f} %", 100 * report.score.accuracy());
  if (report.is_best) validation_ += "  best";
  ends_early_ = report.is_last;
}

void Progress::epoch(const EpochReport& report) {
  const bool is_last = report.epoch + 1 >= options_.epochs || ends_early_;
  const bool is_due = !options_.moves && options_.now() - drawn_ >= kSecondsBetweenLines;
  if (!is_last && !is_due) return;
  draw(line(report.mean_loss(), pace_of(report, options_.padded), ""));
  stream_ << std::endl;
}

}  // namespace millrace::cli
