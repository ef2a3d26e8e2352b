// SIGTERM and SIGINT as a request: finish the current step, save the state, end the command.
// Launchers send several: srun's own signal and that of scancel reach a rank within moments.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::cli {

/// Ends the process as the signal's default does, also if it is blocked or ignored.
void end_by(int signal);

/// The first signal is stored. Repeated within a second it is the same request; repeated later it
/// ends the process at once. Thread-safety: any.
class StopRequest {
 public:
  void note(int signal);
  void forget();

  /// The first signal, or 0.
  [[nodiscard]] int signal() const { return signal_.load(); }

 private:
  std::atomic<std::int64_t> since_{0};  // milliseconds of the steady clock
  std::atomic<int> signal_{0};
};

/// While it exists, the first SIGTERM or SIGINT is only stored (StopRequest), by the thread that
/// takes them (SignalThread). Its end restores both signals unless one came: the rest of the work
/// is then as safe from its repetition. Thread-safety: one at a time.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  /// The signal that came, or 0.
  [[nodiscard]] static int received();
};

}  // namespace millrace::cli
