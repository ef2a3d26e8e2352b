// A wish to end, noted by a signal's handler. Engines send it more than once: srun's own signal and
// that of scancel reach a rank within moments.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::cli {

/// The first signal is noted. Repeated within a second it is the same wish; repeated later it ends
/// the process at once.
/// Thread-safety: any; `note` may be called by handlers.
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
