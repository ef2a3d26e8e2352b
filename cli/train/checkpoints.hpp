// What a run tells of its checkpoints, and what it begins with.
#pragma once

#include <cstdint>
#include <string>

#include "cli/train/options.hpp"
#include "millrace/training/trainer.hpp"

namespace millrace::cli {

/// Resumes, or takes over weights, as the flags say; rank 0 (`speaks`) tells what is not as it was,
/// on standard error. Throws what Trainer::resume does.
void begin_from(Trainer& trainer, const StartFlags& flags, bool speaks);

/// What became of the saves of a run.
struct SavedCheckpoints {
  std::string newest;
  std::int64_t saved = 0;
  std::int64_t failed = 0;
  std::string fault;  ///< of the last one that failed

  /// Counts one, and gives the alarm on standard error if it failed.
  void add(const SaveReport& report, bool speaks);
};

/// Ends the command with 1, and says why, where a checkpoint was not saved.
void require_saved(const SavedCheckpoints& checkpoints, bool speaks);

/// The same where the run had steps, and none of them updated the weights.
void require_update(const FitReport& fit, bool speaks);

/// Says that the run was stopped, and where it goes on, and ends the command with the code of the
/// signal.
[[noreturn]] void end_stopped(const TrainingCounters& counters,
                              const SavedCheckpoints& checkpoints,
                              bool speaks);

}  // namespace millrace::cli
