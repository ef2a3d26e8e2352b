#include "cli/train/watching.hpp"

#include <iostream>

#include "cli/files.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

/// Who reads metrics does so every few seconds.
constexpr std::chrono::seconds kMetricsAge{1};

}  // namespace

Watching::Watching(const TrainFlags& flags) : flags_(flags) {
  const WatchFlags& watch = flags.watch;
  if (!watch.metrics.empty()) require_writable("--metrics", watch.metrics);
  if (!watch.report.empty()) require_writable("--report", watch.report);
  if (!watch.log.empty()) log_.emplace(watch.log);
}

void Watching::begin(bool resumes, std::int64_t step, const Program& program, int copies) {
  program_ = &program;
  if (!log_) return;
  StepRecord form;
  for (int copy = 0; copy < copies; ++copy)
    for (int rank = 0; rank < program.shape.ranks; ++rank)
      form.ranks.push_back({Rank{rank}, copy, {}, {}});
  const bool draws = !flags_.watch.report.empty() || !flags_.watch.metrics.empty();
  const auto restore = [this](const StepRecord& record) { count(record); };
  log_->begin(
      resumes, step, form, draws ? std::function<void(const StepRecord&)>(restore) : nullptr);
}

void Watching::count(const StepRecord& record) {
  if (totals_.steps() == 0) first_step_ = record.step;
  totals_.add(record);
  history_.add(record);
}

void Watching::add(const StepRecord& record) {
  if (log_) log_->add(record);
  count(record);
  last_ = record;
  if (flags_.watch.metrics.empty()) return;
  const auto now = std::chrono::steady_clock::now();
  if (totals_.steps() > 1 && now - metrics_written_ < kMetricsAge) return;
  metrics_written_ = now;
  write_metrics();
}

/// What fails now may work the next time.
void Watching::write_metrics() {
  try {
    write_files({{"--metrics", flags_.watch.metrics, prometheus_text(totals_, last_)}});
    fault_.clear();
  } catch (const Error& error) {
    if (fault_.empty()) std::cerr << std::string("millrace: ") + error.what() + "\n";
    fault_ = error.what();
  }
}

/// The run as it was asked for, and what became of it.
std::string Watching::page() const {
  return draw_page({"millrace train: " + program_->name,
                    "model " + flags_.model + ", data " + flags_.data + ", " +
                        std::to_string(program_->shape.ranks) + " ranks, " +
                        std::to_string(program_->shape.micro_batches) +
                        " micro-batches, optimizer " + flags_.rule.optimizer + ", " +
                        flags_.precision + ", seed " + std::to_string(flags_.seed) +
                        (first_step_ > 1 ? "; begins at step " + std::to_string(first_step_) +
                                               ", the steps before it are in no --log"
                                         : ""),
                    history_,
                    totals_,
                    *program_,
                    last_.timeline});
}

void Watching::finish() {
  if (totals_.steps() > 0) {
    if (!flags_.watch.metrics.empty()) write_metrics();
    if (!flags_.watch.report.empty()) write_files({{"--report", flags_.watch.report, page()}});
  }
  if (log_) log_->finish();
  if (!fault_.empty()) throw Error(fault_);
}

void Watching::finish_failed() noexcept {
  try {
    finish();
  } catch (const std::exception&) {
    return;  // its alarm has been given
  }
}

}  // namespace millrace::cli
