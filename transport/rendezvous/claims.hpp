// Which process says that it is which rank, for rank 0: two processes with the same rank are named,
// a process that was started again is not accused.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "millrace/core/ids.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

/// When a second process says that it is a rank, both are asked. Two that answer have the same rank
/// at the same time; one that does not answer has ended and was replaced.
/// Thread-safety: externally synchronised.
class Claims {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes a hello. False where it does not count, because the rank is asked about and this hello
  /// does not answer.
  bool heard(Rank rank, const HelloFields& hello, Clock::time_point now);

  /// Ends the questions that one process alone has answered in time.
  void settle(Clock::time_point now);

  /// What a hello of this rank has to answer; empty without a question.
  [[nodiscard]] std::string question(Rank rank) const;

  /// "two processes have rank 1: process 7 on a and process 9 on b"; empty where none do.
  [[nodiscard]] const std::string& conflict() const { return conflict_; }

 private:
  struct Claim {
    std::string owner;     // its word
    std::string question;  // empty: none
    Clock::time_point asked;
    std::map<std::string, std::string> answered;  // word to process
  };

  std::map<int, Claim> claims_;  // by rank
  std::string conflict_;
};

}  // namespace millrace
