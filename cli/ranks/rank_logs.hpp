// The logs of a job's ranks in one folder, over several attempts: a restart must not erase the log
// that explains why it was needed.
#pragma once

#include <string>
#include <vector>

namespace millrace::cli {

/// Thread-safety: externally synchronised.
class RankLogs {
 public:
  /// `directory` exists. Reads the logs of earlier attempts in it, to number this one.
  explicit RankLogs(std::string directory);

  [[nodiscard]] std::string path(int rank) const;

  /// Opens the log of a rank, appends the line that begins this attempt, and returns the
  /// descriptor, which is the caller's. Throws Error when the log cannot be written.
  [[nodiscard]] int open(int rank);

  /// Renames the logs of ranks that this attempt has not opened: "rank-2.before-attempt-3.log".
  void set_aside_others() const;

 private:
  std::string directory_;
  std::vector<std::string> opened_;
  int attempt_ = 1;
};

}  // namespace millrace::cli
