// What rank 0 writes to files: the log, metrics and page of a run, its timeline and its costs.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/train/options.hpp"
#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/training/run_page.hpp"
#include "millrace/training/step_record.hpp"
#include "millrace/training/step_totals.hpp"

namespace millrace::cli {

/// Lines of JSON or of CSV, by the file's ending. A line is handed to the system whole, and cut off
/// again where that takes only a part of it. Training goes on when it cannot be written.
/// Thread-safety: externally synchronised.
class StepLog {
 public:
  /// Opens the file, and changes nothing in it yet. Throws InvalidArgument naming the option when
  /// that is not possible.
  explicit StepLog(std::string path);
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;
  ~StepLog();

  /// Begins again, or, where the run `resumes`, behind the record of `step`: what later steps have
  /// left, or half a line, is cut off. `form` has the ranks of the records to come. Throws
  /// DataError naming the line when the file is no such log, InvalidArgument when it has other
  /// columns.
  /// `each`: is given every record that stays, unless it is null.
  void begin(bool resumes,
             std::int64_t step,
             const StepRecord& form,
             const std::function<void(const StepRecord&)>& each = {});

  /// Gives the alarm on standard error once, when the system refuses.
  void add(const StepRecord& record);

  /// Throws Error when steps are missing in it.
  void finish() const;

 private:
  [[nodiscard]] std::int64_t end_of(std::int64_t step,
                                    const StepRecord& form,
                                    const std::function<void(const StepRecord&)>& each) const;
  [[nodiscard]] StepRecord record_in(const std::string& line,
                                     const std::string& columns,
                                     std::int64_t number) const;
  void write(const std::string& line);

  std::string path_;
  bool csv_;
  bool made_;  // the file was not there
  bool begun_ = false;
  int file_ = -1;
  std::int64_t size_ = 0;  // of its whole lines
  std::string fault_;
};

/// Thread-safety: externally synchronised.
class Watching {
 public:
  /// Tries the files, and leaves them as they are. Throws InvalidArgument naming the option whose
  /// file cannot be written.
  explicit Watching(const TrainJob& job);

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

  const TrainJob& job_;
  const Program* program_ = nullptr;
  std::optional<StepLog> log_;
  StepTotals totals_;
  RunHistory history_;
  StepRecord last_;
  std::int64_t first_step_ = 0;  // that totals and history have
  std::chrono::steady_clock::time_point metrics_written_;
  std::string fault_;
};

/// Tried before training, so that a wrong path is not found out after it; written whole at its end,
/// so that a run that fails leaves what was there.
/// Thread-safety: externally synchronised.
class TrainOutputs {
 public:
  /// Throws InvalidArgument naming the option whose file cannot be written.
  explicit TrainOutputs(const TrainFlags& flags);

  /// Writes what was asked for; the rest of the run has been told then. Throws Error naming every
  /// file that could not be written.
  void write(const Program& program, const Timeline& last, const Cost& cost) const;

 private:
  std::string trace_, svg_, costs_;
};

}  // namespace millrace::cli
