// for_each_rank's error rule, shared by the executors: every rank's work is done or has failed,
// then the failure of the lowest rank is thrown as a StepError.
#pragma once

#include <exception>
#include <functional>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"

namespace millrace::run {

/// Thread-safety: `run` from any thread, for different ranks.
class RankWork {
 public:
  RankWork(const std::function<void(Rank)>& body, int ranks)
      : body_(body), failures_(static_cast<std::size_t>(ranks)) {}

  void run(Rank rank) noexcept {
    try {
      body_(rank);
    } catch (...) {
      failures_[rank.index()] = std::current_exception();
    }
  }

  /// Throws the lowest rank's failure: as it is when it is a StepError, else inside one that names
  /// the rank and the optimizer step.
  void rethrow() const;

 private:
  const std::function<void(Rank)>& body_;
  std::vector<std::exception_ptr> failures_;
};

}  // namespace millrace::run
