// What rank 0 does with the records of a run: log, metrics, page.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/train/options.hpp"
#include "cli/train/step_log.hpp"
#include "millrace/training/run_page.hpp"
#include "millrace/training/step_totals.hpp"

namespace millrace::cli {

/// Thread-safety: externally synchronised.
class Watching {
 public:
  /// Tries the files, and leaves them as they are. Throws InvalidArgument naming the option whose
  /// file cannot be written.
  explicit Watching(const TrainFlags& flags);

  /// Before the first step: `step` mini-batches have been run, by another process where the run
  /// `resumes`, whose records metrics and page take from the log; `program` is what is executed, in
  /// so many copies, and must outlive this. Throws as StepLog::begin.
  void begin(bool resumes, std::int64_t step, const Program& program, int copies);

  void add(const StepRecord& record);

  /// Writes what is to be there when the run has ended, or was stopped. Throws Error naming what
  /// could not be written.
  void finish();
  /// The same where the run has failed, which is told and this is not.
  void finish_failed() noexcept;

 private:
  void count(const StepRecord& record);
  void write_metrics();

  [[nodiscard]] std::string page() const;

  const TrainFlags& flags_;
  const Program* program_ = nullptr;
  std::optional<StepLog> log_;
  StepTotals totals_;
  RunHistory history_;
  StepRecord last_;
  std::int64_t first_step_ = 0;  // that totals and history have
  std::chrono::steady_clock::time_point metrics_written_;
  std::string fault_;
};

}  // namespace millrace::cli
