// The points of a run's curves; see run_page.hpp.
#include <cmath>
#include <limits>

#include "millrace/core/error.hpp"
#include "millrace/training/records.hpp"

namespace millrace {

RunHistory::RunHistory(std::size_t most) : most_(most) {
  require(most >= 2 && most % 2 == 0,
          "a history has an even number of points, at least 2, got " + std::to_string(most));
}

void RunHistory::join(Sums& sums, const Sums& more) {
  sums.steps += more.steps;
  sums.last_step = more.last_step;
  sums.skipped += more.skipped;
  sums.restarts += more.restarts;
  sums.losses += more.losses;
  sums.norms += more.norms;
  sums.validation_loss = more.validation_loss;
  sums.validation_accuracy = more.validation_accuracy;
  sums.loss += more.loss;
  sums.norm += more.norm;
  sums.rate += more.rate;
  sums.scale += more.scale;
  sums.bubble += more.bubble;
  sums.samples += more.samples;
  sums.seconds += more.seconds;
}

void RunHistory::add(const StepRecord& record) {
  const StepReport& report = record.report;
  Sums step;
  step.steps = 1;
  step.last_step = record.step;
  step.skipped = report.skipped ? 1 : 0;
  step.restarts = record.restarts;
  if (std::isfinite(report.mean_loss())) {
    step.loss = report.mean_loss();
    step.losses = 1;
  }
  if (std::isfinite(report.gradient_norm)) {
    step.norm = report.gradient_norm;
    step.norms = 1;
  }
  step.validation_loss = record.validation_loss;
  step.validation_accuracy = record.validation_accuracy;
  step.rate = report.learning_rate;
  step.scale = report.loss_scale;
  step.bubble = record.bubble();
  step.samples = static_cast<double>(report.samples);
  step.seconds = record.seconds;

  if (!sums_.empty() && sums_.back().steps < width_) return join(sums_.back(), step);
  if (sums_.size() == most_) {
    for (std::size_t i = 0; i < most_ / 2; ++i) {
      Sums joined = sums_[2 * i];
      join(joined, sums_[2 * i + 1]);
      sums_[i] = joined;
    }
    sums_.resize(most_ / 2);
    width_ *= 2;
  }
  sums_.push_back(step);
}

HistoryPoint RunHistory::point_of(const Sums& sums) {
  const auto mean = [](double sum, std::int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
  };
  HistoryPoint point;
  point.step = sums.last_step;
  point.loss = mean(sums.loss, sums.losses);
  point.gradient_norm = mean(sums.norm, sums.norms);
  point.learning_rate = mean(sums.rate, sums.steps);
  point.samples_per_second = sums.seconds > 0 ? sums.samples / sums.seconds : 0;
  point.bubble = mean(sums.bubble, sums.steps);
  point.loss_scale = mean(sums.scale, sums.steps);
  point.validation_loss = sums.validation_loss;
  point.validation_accuracy = sums.validation_accuracy;
  point.skipped = sums.skipped;
  point.restarts = sums.restarts;
  return point;
}

std::vector<HistoryPoint> RunHistory::points() const {
  std::vector<HistoryPoint> points;
  for (const Sums& sums : sums_) points.push_back(point_of(sums));
  return points;
}

}  // namespace millrace
