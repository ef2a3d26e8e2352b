// What rank 0 does with the records of a run: log, metrics.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/train/step_log.hpp"
#include "cli/train/watch_flags.hpp"
#include "millrace/training/step_totals.hpp"

namespace millrace::cli {

/// Thread-safety: externally synchronised.
class Watching {
 public:
  /// Tries the files, and leaves them as they are. Throws InvalidArgument naming the option whose
  /// file cannot be written.
  explicit Watching(const WatchFlags& flags);

  /// Before the first step: `step` mini-batches have been run, by another process where the run
  /// `resumes`; `ranks` of the program, in so many copies. Throws as StepLog::begin.
  void begin(bool resumes, std::int64_t step, int ranks, int copies);

  void add(const StepRecord& record);

  /// Writes what is to be there when the run has ended, or was stopped. Throws Error naming what
  /// could not be written.
  void finish();
  /// The same where the run has failed, which is told and this is not.
  void finish_failed() noexcept;

 private:
  void write_metrics();

  const WatchFlags& flags_;
  std::optional<StepLog> log_;
  StepTotals totals_;
  StepRecord last_;
  std::chrono::steady_clock::time_point metrics_written_;
  std::string fault_;
};

}  // namespace millrace::cli
