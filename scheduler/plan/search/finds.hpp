// What a search has found so far, and which of it is worth keeping, relisting and improving.
#pragma once

#include <cstddef>
#include <vector>

#include "millrace/scheduler/plan/search.hpp"
#include "plan/search/evaluator.hpp"

namespace millrace::plan {

/// Finds within the memory limit, and those above it, which are seeds only. "Best" is by the
/// objective, then fewer recomputing stages, then peak memory, then makespan and span together.
/// Thread-safety: externally synchronised.
class Finds {
 public:
  /// `options` must outlive this.
  explicit Finds(const SearchOptions& options) : options_(options) {}

  /// Takes in what can run, with its figures in the user's units.
  void keep(FoundSchedule found, const Figures& figures, double ticks_per_unit);

  /// Takes in what others found within the limit.
  void take(const Finds& others);

  /// Drops finds that can be neither best nor seed nor in the front: large programs take room.
  void forget_hopeless();

  /// Those within the limit.
  [[nodiscard]] const std::vector<FoundSchedule>& within() const { return within_; }
  [[nodiscard]] double value(const FoundSchedule& found) const {
    return found.value(options_.objective);
  }
  /// None: nothing is within the limit.
  [[nodiscard]] const FoundSchedule* best() const;
  /// The best and the best of every shape, inside the limit and above it.
  [[nodiscard]] std::vector<FoundSchedule> seeds() const;
  /// The best `count` programs within the limit, no two alike.
  [[nodiscard]] std::vector<FoundSchedule> best_programs(std::size_t count) const;

 private:
  [[nodiscard]] std::vector<const FoundSchedule*> by_value(
      const std::vector<FoundSchedule>& finds) const;

  const SearchOptions& options_;
  std::vector<FoundSchedule> within_;
  std::vector<FoundSchedule> above_;
};

}  // namespace millrace::plan
