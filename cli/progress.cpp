// Progress lines.
#include "cli/progress.hpp"

#include <iomanip>
#include <ostream>
#include <sstream>
#include <string>

namespace millrace::cli {

namespace {

constexpr double kSecondsBetweenLines = 0.05;

std::string step_line(const StepReport& report,
                      double mean_loss,
                      double samples_per_second,
                      double bubble,
                      std::int64_t epochs) {
  std::ostringstream line;
  line << std::fixed << "epoch " << report.epoch + 1 << "/" << epochs << "  step "
       << report.global_step << "  loss " << std::setprecision(4) << mean_loss << "  norm "
       << std::setprecision(3) << report.gradient_norm << "  lr " << std::scientific
       << std::setprecision(2) << report.learning_rate << std::fixed << std::setprecision(0) << "  "
       << samples_per_second << " samples/s  bubble " << std::setprecision(1) << 100 * bubble
       << " %";
  if (report.skipped) line << "  (gradient not finite: skipped)";
  return line.str();
}

}  // namespace

Progress::Progress(std::ostream& stream, bool moves, std::int64_t epochs)
    : stream_(stream), moves_(moves), epochs_(epochs) {}

void Progress::step(const StepReport& report, double bubble) {
  last_ = report;
  bubble_ = bubble;
  since_drawn_ += report.seconds;
  if (!moves_ || since_drawn_ < kSecondsBetweenLines) return;
  since_drawn_ = 0;
  const double rate = report.seconds > 0 ? static_cast<double>(report.samples) / report.seconds : 0;
  std::string line = step_line(report, report.mean_loss(), rate, bubble, epochs_);
  const std::size_t width = line.size();
  if (width < width_) line.append(width_ - width, ' ');
  width_ = width;
  stream_ << '\r' << line << std::flush;
}

void Progress::epoch(const EpochReport& report) {
  if (moves_ && report.epoch + 1 < epochs_) return;
  const double rate = report.seconds > 0 ? static_cast<double>(report.samples) / report.seconds : 0;
  std::string line = step_line(last_, report.mean_loss(), rate, bubble_, epochs_);
  if (line.size() < width_) line.append(width_ - line.size(), ' ');
  stream_ << (moves_ ? "\r" : "") << line << std::endl;
}

}  // namespace millrace::cli
