// A wish to end, made by signals. Engines send more than one: srun's own signal and that of scancel
// reach a rank within moments.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::cli {

/// Ends the process as the signal's default does, also where it is blocked or ignored.
void end_by(int signal);

/// The first signal is noted. Repeated within a second it is the same wish; repeated later it ends
/// the process at once.
/// Thread-safety: any.
class Wish {
 public:
  void note(int signal);
  void forget();

  /// The signal that came, or 0.
  [[nodiscard]] int signal() const { return signal_.load(); }

 private:
  std::atomic<std::int64_t> since_{0};  // milliseconds of the steady clock
  std::atomic<int> signal_{0};
};

}  // namespace millrace::cli
