// The checkpoints of one call of fit(): when one is due, and who hears what became of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "millrace/training/checkpoint.hpp"
#include "training/trainer_state.hpp"

namespace millrace {

/// Does nothing where no folder is named. Thread-safety: externally synchronised.
class Trainer::Saving {
 public:
  Saving(State& trainer, const std::function<void(const SaveReport&)>& tell);

  /// Whether this process' clock asks for a checkpoint behind the next step.
  [[nodiscard]] bool is_time() const;

  /// Notes where the training stands, for when the step fails.
  void before_step();
  /// Begins what is due, and tells what has ended. `is_time` in all processes alike.
  void after_step(bool is_time);
  /// The last one, of the state at the end.
  void finish();
  /// Saves the state before the step that failed, if it is `whole`.
  void failed(bool whole);

 private:
  using Clock = std::chrono::steady_clock;

  void begin();
  void advance(bool wait);

  State& trainer_;
  const std::function<void(const SaveReport&)>& tell_;
  const SaveOptions& options_;
  Manifest head_;  // of the last boundary
  Clock::time_point last_;
  Moment saved_;  // of the newest checkpoint
};

}  // namespace millrace
