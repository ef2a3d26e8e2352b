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
#include "millrace/training/records.hpp"

namespace millrace::cli {

/// Lines of JSON or of CSV, by the file's ending. A line is written whole or removed. Training
/// continues if it cannot be written.
/// Thread-safety: externally synchronised.
class StepLog {
 public:
  /// Opens the file without a change. Throws InvalidArgument that names the option.
  explicit StepLog(std::string path);
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;
  ~StepLog();

  /// Empties the file or, if the run `resumes`, removes the records after `step` and an incomplete
  /// line. `form` has the ranks of the new records. `each`, unless null, is called with every
  /// record that stays. Throws DataError that names the line if the file is not such a log,
  /// InvalidArgument if it has other columns.
  void begin(bool resumes,
             std::int64_t step,
             const StepRecord& form,
             const std::function<void(const StepRecord&)>& each = {});

  /// The first failure is reported on standard error.
  void add(const StepRecord& record);

  /// Throws Error if the log lacks steps.
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

/// Log, metrics and page of a run. Thread-safety: externally synchronised.
class Watching {
 public:
  /// Opens the files without a change. Throws InvalidArgument that names the option whose file
  /// cannot be written.
  explicit Watching(const TrainJob& job);

  /// Call it before the first step, after `step` mini-batches. If the run `resumes`, metrics and
  /// page begin with the records of the log. `program` is executed by `replicas` data-parallel
  /// replicas, and must outlive this. Throws as StepLog::begin.
  void begin(bool resumes, std::int64_t step, const Program& program, int replicas);

  void add(const StepRecord& record);

  /// Writes metrics and page when the run ends or is stopped. Throws Error that names the files
  /// that could not be written.
  void finish();
  /// The same after a failure of the run, which is reported instead of one here.
  void finish_failed() noexcept;

 private:
  void count(const StepRecord& record);
  void note_restarts();
  void write_metrics();

  [[nodiscard]] std::string page() const;

  const TrainJob& job_;
  const Program* program_ = nullptr;
  std::optional<StepLog> log_;
  StepTotals totals_;
  RunHistory history_;
  StepRecord last_;
  std::int64_t restarts_ = 0;    // before the next step, and not yet recorded
  double last_end_ = 0;          // of the last step that counts
  std::int64_t first_step_ = 0;  // that totals and history have
  std::chrono::steady_clock::time_point metrics_written_;
  std::string fault_;
};

/// Timeline, diagram and measured costs: opened before training, so that a wrong path is found at
/// once, and written whole at its end, so that a failed run leaves the old files.
/// Thread-safety: externally synchronised.
class TrainOutputs {
 public:
  /// Throws InvalidArgument that names the option whose file cannot be written.
  explicit TrainOutputs(const TrainFlags& flags);

  /// Writes the files. Throws Error that names every file that could not be written.
  void write(const Program& program, const Timeline& last, const Cost& cost) const;

 private:
  std::string trace_, svg_, costs_;
};

}  // namespace millrace::cli
