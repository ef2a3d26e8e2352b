// Progress lines.
#include "cli/train/progress.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <numbers>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

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

/// The terminal's last column stays free: some begin a new line after it.
std::size_t Progress::columns() const {
  constexpr std::size_t kOfFile = 100;
  return options_.columns > 1 ? options_.columns - 1 : kOfFile;
}

/// Without room for all, a line that moves (with `left`) ends early; another continues on the next.
std::string Progress::line(double mean_loss,
                           const std::string& pace,
                           const std::string& left) const {
  std::vector<std::string> fields = {
      fmt::format("step {}  loss {:.4f}", last_.global_step, mean_loss),
      fmt::format("norm {:.3f}", last_.gradient_norm),
      fmt::format("lr {:.2e}", last_.learning_rate),
      pace,
      fmt::format("{} {:.1f} %", options_.idle, 100 * bubble_)};
  if (!validation_.empty())
    fields.insert(left.empty() ? fields.end() : fields.begin() + 1, validation_);
  if (last_.loss_scale != 1) fields.push_back(fmt::format("scale {:.0f}", last_.loss_scale));
  if (last_.skipped)
    fields.emplace_back(last_.has_no_weight() ? "(all targets weigh 0: skipped)"
                                              : "(gradient not finite: skipped)");
  std::string text = fmt::format("epoch {}/{}{}", last_.epoch + 1, options_.epochs, left);
  std::size_t begin = 0;  // of the last line
  for (const std::string& field : fields) {
    const bool fits = text.size() + 2 + field.size() - begin <= columns();
    if (!fits && !left.empty()) break;
    if (!fits) begin = text.size() + 1;
    text += (fits ? "  " : "\n  ") + field;
  }
  if (!left.empty()) text.resize(std::min(text.size(), columns()));
  return text;
}

/// By the mean time of a step so far, everything between steps included.
std::string Progress::left() const {
  const std::int64_t done = last_.epoch * options_.batches_per_epoch + last_.batch + 1;
  const double per_step = (options_.now() - began_) / static_cast<double>(steps_);
  return ", " + duration_text(per_step * static_cast<double>(options_.steps - done)) + " left";
}

void Progress::draw(std::string text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  if (options_.moves && end < width_) text.insert(end, width_ - end, ' ');
  width_ = end;
  stream_ << (options_.moves ? "\r" : "") << text;
  drawn_ = options_.now();
}

void Progress::step(const StepReport& report, double bubble) {
  last_ = report;
  bubble_ = bubble;
  ++steps_;
  if (!options_.moves || options_.now() - drawn_ < kSecondsBetweenMoves) return;
  draw(line(report.mean_loss(), pace_of(report, options_.padded), left()));
  stream_ << std::flush;
}

void Progress::validation(const ValidationReport& report, bool is_text) {
  const double loss = report.score.mean_loss();
  validation_ = fmt::format("validation loss {:.4f}", loss);
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
