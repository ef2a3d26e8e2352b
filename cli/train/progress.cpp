// Progress lines.
#include "cli/train/progress.hpp"

#include <iomanip>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

namespace millrace::cli {

namespace {

constexpr double kSecondsBetweenLines = 0.05;

/// "97 samples/s", and of samples of lengths of their own "  8911 tokens/s  padding 4.2 %".
template <class Report>
std::string pace_of(const Report& report, bool padded) {
  const auto rate = [&](std::int64_t count) {
    return report.seconds > 0 ? static_cast<double>(count) / report.seconds : 0;
  };
  std::ostringstream text;
  text << std::fixed << std::setprecision(0) << rate(report.samples) << " samples/s";
  if (padded)
    text << "  " << rate(report.loss.judged) << " tokens/s  padding " << std::setprecision(1)
         << 100 * padding_share(report.loss.judged, report.positions) << " %";
  return text.str();
}

}  // namespace

double padding_share(std::int64_t tokens, std::int64_t positions) {
  return positions > 0 ? 1 - static_cast<double>(tokens) / static_cast<double>(positions) : 0;
}

Progress::Progress(
    std::ostream& stream, bool moves, std::int64_t epochs, std::string idle, bool padded)
    : stream_(stream), moves_(moves), epochs_(epochs), idle_(std::move(idle)), padded_(padded) {}

std::string Progress::line(const StepReport& report,
                           double mean_loss,
                           const std::string& pace) const {
  std::ostringstream line;
  line << std::fixed << "epoch " << report.epoch + 1 << "/" << epochs_ << "  step "
       << report.global_step << "  loss " << std::setprecision(4) << mean_loss << "  norm "
       << std::setprecision(3) << report.gradient_norm << "  lr " << std::scientific
       << std::setprecision(2) << report.learning_rate << std::fixed << "  " << pace << "  "
       << idle_ << " " << std::setprecision(1) << 100 * bubble_ << " %";
  if (report.loss_scale != 1) line << "  scale " << std::setprecision(0) << report.loss_scale;
  if (report.skipped)
    line << (report.has_no_weight() ? "  (all targets weigh 0: skipped)"
                                    : "  (gradient not finite: skipped)");
  return line.str();
}

void Progress::step(const StepReport& report, double bubble) {
  last_ = report;
  bubble_ = bubble;
  since_drawn_ += report.seconds;
  if (!moves_ || since_drawn_ < kSecondsBetweenLines) return;
  since_drawn_ = 0;
  std::string text = line(report, report.mean_loss(), pace_of(report, padded_));
  const std::size_t width = text.size();
  if (width < width_) text.append(width_ - width, ' ');
  width_ = width;
  stream_ << '\r' << text << std::flush;
}

void Progress::epoch(const EpochReport& report) {
  if (moves_ && report.epoch + 1 < epochs_) return;
  std::string text = line(last_, report.mean_loss(), pace_of(report, padded_));
  if (text.size() < width_) text.append(width_ - text.size(), ' ');
  stream_ << (moves_ ? "\r" : "") << text << std::endl;
}

}  // namespace millrace::cli
