// The checkpoints of one call of fit(): when one is due, and who hears what became of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "training/trainer_state.hpp"

namespace millrace {

/// Does nothing where no folder is named. Thread-safety: externally synchronised.
class Trainer::Saving {
 public:
  /// Locks and tries the folder; throws as Trainer::save.
  Saving(State& trainer, const std::function<void(const SaveReport&)>& tell);
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;
  ~Saving();

  /// Whether this process' clock asks for a checkpoint behind the next step.
  [[nodiscard]] bool is_time() const;

  /// Notes where the training stands, which is between two steps, for when the next one fails.
  void note_boundary();
  /// Begins what is due, and tells what has ended. `is_time` in all processes alike.
  void after_step(bool is_time);
  /// The last one, of the state at the end.
  void finish();

  /// Runs `work`, of which the above are part; where it throws, what it leaves is saved.
  template <class Work>
  void guard(const Work& work) {
    try {
      work();
    } catch (const SaveFailed&) {
      throw;  // in all processes alike; another attempt would fail as well
    } catch (const Diverged&) {
      diverged();
      throw;
    } catch (const std::exception& error) {
      failed(error);
      throw;
    } catch (...) {
      failed(Error("an unknown exception"));
      throw;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_refused() const;
  void report_refusal();
  void diverged();
  void failed(const std::exception& error);
  void begin();
  void advance(bool wait);
  void failed_alone();
  void failed_among_others(const std::exception& error);

  State& trainer_;
  const std::function<void(const SaveReport&)>& tell_;
  const SaveOptions& options_;
  Manifest head_;  // of the last boundary
  Clock::time_point last_;
  Moment saved_;  // of the newest checkpoint
  bool is_failing_ = false;
};

}  // namespace millrace
