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

}  // namespace

Progress::Progress(std::ostream& stream, bool moves, std::int64_t epochs, std::string idle)
    : stream_(stream), moves_(moves), epochs_(epochs), idle_(std::move(idle)) {}

std::string Progress::line(const StepReport& report,
                           double mean_loss,
                           double samples_per_second) const {
  std::ostringstream line;
  line << std::fixed << "epoch " << report.epoch + 1 << "/" << epochs_ << "  step "
       << report.global_step << "  loss " << std::setprecision(4) << mean_loss << "  norm "
       << std::setprecision(3) << report.gradient_norm << "  lr " << std::scientific
       << std::setprecision(2) << report.learning_rate << std::fixed << std::setprecision(0) << "  "
       << samples_per_second << " samples/s  " << idle_ << " " << std::setprecision(1)
       << 100 * bubble_ << " %";
  if (report.loss_scale != 1) line << "  scale " << std::setprecision(0) << report.loss_scale;
  if (report.skipped) line << "  (gradient not finite: skipped)";
  return line.str();
}

void Progress::step(const StepReport& report, double bubble) {
  last_ = report;
  bubble_ = bubble;
  since_drawn_ += report.seconds;
  if (!moves_ || since_drawn_ < kSecondsBetweenLines) return;
  since_drawn_ = 0;
  const double rate = report.seconds > 0 ? static_cast<double>(report.samples) / report.seconds : 0;
  std::string text = line(report, report.mean_loss(), rate);
  const std::size_t width = text.size();
  if (width < width_) text.append(width_ - width, ' ');
  width_ = width;
  stream_ << '\r' << text << std::flush;
}

void Progress::epoch(const EpochReport& report) {
  if (moves_ && report.epoch + 1 < epochs_) return;
  const double rate = report.seconds > 0 ? static_cast<double>(report.samples) / report.seconds : 0;
  std::string text = line(last_, report.mean_loss(), rate);
  if (text.size() < width_) text.append(width_ - text.size(), ' ');
  stream_ << (moves_ ? "\r" : "") << text << std::endl;
}

}  // namespace millrace::cli
