// See watching.hpp.
#include "cli/train/watching.hpp"

#include <iostream>

#include "cli/files.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

/// Who reads metrics does so every few seconds.
constexpr std::chrono::seconds kMetricsAge{1};

}  // namespace

Watching::Watching(const WatchFlags& flags) : flags_(flags) {
  if (!flags.metrics.empty()) require_writable("--metrics", flags.metrics);
  if (!flags.log.empty()) log_.emplace(flags.log);
}

void Watching::begin(bool resumes, std::int64_t step, int ranks, int copies) {
  if (!log_) return;
  StepRecord form;
  for (int copy = 0; copy < copies; ++copy)
    for (int rank = 0; rank < ranks; ++rank) form.ranks.push_back({Rank{rank}, copy, {}, {}});
  log_->begin(resumes, step, form);
}

void Watching::add(const StepRecord& record) {
  if (log_) log_->add(record);
  totals_.add(record);
  last_ = record;
  if (flags_.metrics.empty()) return;
  const auto now = std::chrono::steady_clock::now();
  if (totals_.steps() > 1 && now - metrics_written_ < kMetricsAge) return;
  metrics_written_ = now;
  write_metrics();
}

/// What fails now may work the next time.
void Watching::write_metrics() {
  try {
    write_files({{"--metrics", flags_.metrics, prometheus_text(totals_, last_)}});
    fault_.clear();
  } catch (const Error& error) {
    if (fault_.empty()) std::cerr << std::string("millrace: ") + error.what() + "\n";
    fault_ = error.what();
  }
}

void Watching::finish() {
  if (!flags_.metrics.empty() && totals_.steps() > 0) write_metrics();
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
