// SIGTERM and SIGINT as a wish: the current step is finished, the state is saved, and then the
// command ends.
#pragma once

namespace millrace::cli {

/// From its construction on, the first SIGTERM or SIGINT is only noted, by the thread that takes
/// them (SignalThread); one that comes a second later or more ends the process at once (Wish). At
/// the end both are as they were, unless one came: the rest of the work is then as safe from its
/// repetition. Thread-safety: one at a time.
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
