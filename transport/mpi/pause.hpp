// How a rank waits for MPI, which does not signal that a message has come: it looks, sleeps, looks
// again, the longer it has waited the more seldom. So a wait costs little of a core however long it
// is, and adds an eighth to itself at most.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace millrace::mpi {

/// One wait. Thread-safety: thread-affine.
class Pause {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::microseconds kShortest{50};
  static constexpr std::chrono::microseconds kLongest{1000};

  explicit Pause(Clock::time_point deadline) : deadline_(deadline) {}

  /// Something came: more may follow soon.
  void begin_again() { since_ = Clock::now(); }

  /// False when the deadline has passed.
  bool sleep() {
    const auto now = Clock::now();
    if (now >= deadline_) return false;
    std::this_thread::sleep_for(std::min<Clock::duration>(length(now - since_), deadline_ - now));
    return true;
  }

  [[nodiscard]] static Clock::duration length(Clock::duration waited) {
    return std::clamp<Clock::duration>(waited / 8, kShortest, kLongest);
  }

 private:
  Clock::time_point deadline_;
  Clock::time_point since_ = Clock::now();
};

}  // namespace millrace::mpi
