// Work: counts what a long computation looks at, and asks its caller now and then whether to go on.
#pragma once

#include <cstddef>
#include <utility>

#include "millrace/scheduler/plan/parameters.hpp"

namespace millrace::plan {

/// Thread-safety: externally synchronised.
class Work {
 public:
  explicit Work(Stop stop) : stop_(std::move(stop)) {}

  /// Counts `actions` that are looked at. Throws Stopped where the caller wants no more.
  void spend(std::size_t actions) {
    if (!stop_) return;
    spent_ += actions;
    if (spent_ >= kBetweenQuestions) ask();
  }

  /// From now on nobody is asked: what is left is to be finished.
  void mute() { stop_ = nullptr; }

  /// Asks now.
  void ask() {
    spent_ = 0;
    if (!stop_ || !stop_()) return;
    stopped_ = true;
    throw Stopped("stopped by the caller");
  }

  /// Whether the caller wanted no more.
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  static constexpr std::size_t kBetweenQuestions = std::size_t{1} << 16U;

  Stop stop_;
  std::size_t spent_ = 0;
  bool stopped_ = false;
};

}  // namespace millrace::plan
