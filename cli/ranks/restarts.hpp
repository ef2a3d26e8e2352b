// Whether a job that failed is started again, and when: arithmetic without a clock or a process.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace millrace::cli {

inline constexpr std::chrono::milliseconds kFirstDelay{100}, kLongestDelay{60'000};
inline constexpr int kSameFailures = 3;  ///< in the same step, one after the other

/// How a job ended. An unknown step is empty.
struct JobFailure {
  int code = 0;                           ///< that the launch would exit with
  std::string what = {};                  ///< "rank 1 was ended by signal 9 (Killed)"
  std::optional<std::int64_t> step = {};  ///< that the job was in; -1: none yet
  /// From which the next attempt continues, of a job whose checkpoints are known; of another, the
  /// step that it reached.
  std::optional<std::int64_t> progress = {};
  bool has_result = false;  ///< rank 0 had begun to print it
};

/// What earlier failures of the job left.
struct RestartHistory {
  int since_progress = 0;  ///< restarts
  int same = 0;            ///< failures like the last, the last included
  std::optional<JobFailure> last = {};
  std::int64_t progress = 0;  ///< the most so far
};

struct RestartDecision {
  bool restarts = false;
  std::chrono::milliseconds delay{0};  ///< before the restart
  std::string why_not = {};            ///< if it does not restart; empty: the code has the reason
  RestartHistory history = {};         ///< for the next decision
};

/// Where the next attempt begins.
enum class Continues : std::uint8_t { FromCheckpoints, FromTheBeginning, AsItsProgram };

/// "rank 1 was ended by signal 9 (Killed) in step 37; restart 2 in 0.1 s from step 30, 7 steps are
/// done again".
[[nodiscard]] std::string restart_line(const JobFailure& failure,
                                       int number,
                                       std::chrono::milliseconds delay,
                                       Continues continues);

/// Whether an attempt after this exit code may end differently. A subcommand of ours (`is_ours`)
/// restarts after a loss or a hang; a program also after codes that only it knows.
[[nodiscard]] bool may_restart(int code, bool is_ours);

/// After a failure that may restart. `restarts` are allowed without progress; progress allows as
/// many again.
[[nodiscard]] RestartDecision decide_restart(const RestartHistory& history,
                                             const JobFailure& failure,
                                             int restarts);

}  // namespace millrace::cli
