// Whether the actions of a step are worth handing to other threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace millrace::run {

/// Decides, step by step, whether the actions are too short to be given to other threads. On one
/// thread a step's time says how long its actions are; on several it is a bound, good enough to
/// try. Thread-safety: thread-compatible.
class Inlining {
 public:
  Inlining(std::chrono::nanoseconds limit, std::size_t actions, int threads)
      : limit_(limit * static_cast<std::int64_t>(actions)), threads_(threads) {}

  [[nodiscard]] bool now() const { return inline_; }

  /// What the last step took.
  void took(std::chrono::nanoseconds step) {
    if (inline_ && step > limit_) {
      inline_ = false;
      steps_until_try_ = kStepsBetweenTries;
    } else if (!inline_ && steps_until_try_-- <= 0) {
      steps_until_try_ = 0;
      inline_ = step * threads_ < kWorthATry * limit_;
    }
  }

 private:
  static constexpr int kStepsBetweenTries = 100;
  static constexpr int kWorthATry = 4;  // the bound has the cost of handing over in it

  std::chrono::nanoseconds limit_;  // of a whole step
  int threads_;
  int steps_until_try_ = 0;
  bool inline_ = false;
};

}  // namespace millrace::run
