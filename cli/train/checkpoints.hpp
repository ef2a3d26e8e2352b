// Where a run begins, and the results of its saves.
#pragma once

#include <cstdint>
#include <string>

#include "cli/train/options.hpp"
#include "millrace/training/trainer.hpp"

namespace millrace::cli {

/// Resumes a checkpoint or loads weights, by the flags. Rank 0 (`prints`) reports differences on
/// standard error. Throws as Trainer::resume.
void begin_from(Trainer& trainer, const StartFlags& flags, bool prints);

/// The saves of a run.
struct SavedCheckpoints {
  std::string newest;
  std::int64_t saved = 0;
  std::int64_t failed = 0;
  std::string fault;  ///< of the last one that failed

  /// Counts one; reports a failure on standard error.
  void add(const SaveReport& report, bool prints);
};

/// Ends the command with 1 and a message if a checkpoint was not saved.
void require_saved(const SavedCheckpoints& checkpoints, bool prints);

/// The same if the run had steps, but no update.
void require_update(const FitReport& fit, bool prints);

/// Reports that the run was stopped and its newest checkpoint; ends the command with the code of
/// the signal.
[[noreturn]] void end_stopped(const TrainingCounters& counters,
                              const SavedCheckpoints& checkpoints,
                              bool prints);

/// The newest of a folder of checkpoints, the best of DIR/best, else the path itself. Throws
/// StorageError.
[[nodiscard]] std::string newest_at(const std::string& path);

}  // namespace millrace::cli
