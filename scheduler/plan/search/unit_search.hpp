// Recompute by (stage, micro-batch): orders that hold too much, with as few units running their
// forward again as make them fit, improved in order and choice.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/search/finds.hpp"
#include "plan/search/unit_choice.hpp"

namespace millrace::plan {

/// Thread-safety: externally synchronised.
class UnitSearch {
 public:
  /// All must outlive this; `evaluations` counts the orders timed.
  UnitSearch(const SearchOptions& options, Work& work, std::int64_t& evaluations)
      : options_(options), work_(work), evaluations_(evaluations) {}

  /// Times the passes of a program that holds too much with units recomputing. `work` may be null.
  void time(const FoundSchedule& found, const Cost& cost, Work* work);

  /// Improves the best finds, and `starts`, which recompute by stage; nothing where no order held
  /// too much. Stops at `bound`.
  void search(const std::vector<FoundSchedule>& starts, double bound);

  [[nodiscard]] const Finds& finds() const { return finds_; }

 private:
  void search_from(const FoundSchedule& start, std::int64_t budget, double bound);
  void keep(const FoundSchedule& start,
            UnitChoice& choice,
            const JobOrder& order,
            const Cost& cost,
            const std::string& refinement);

  const SearchOptions& options_;
  Work& work_;
  std::int64_t& evaluations_;
  Finds finds_{options_};
  std::uint32_t stream_ = 100;
};

}  // namespace millrace::plan
