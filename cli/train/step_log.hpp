// The log of a run: one line per step, every line whole whenever the process ends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/training/step_record.hpp"

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

}  // namespace millrace::cli
