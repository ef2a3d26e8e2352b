// Recompute by (stage, micro-batch): of orders that hold too much, some units run their forward
// again until the order fits; then both are improved.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/search/finds.hpp"
#include "plan/search/local_search.hpp"
#include "plan/search/unit_choice.hpp"

namespace millrace::plan {

/// Thread-safety: externally synchronised.
class UnitSearch {
 public:
  /// All must outlive this; `evaluations` counts the orders timed.
  UnitSearch(const SearchOptions& options, Work& work, std::int64_t& evaluations)
      : options_(options), work_(work), evaluations_(evaluations) {}

  /// Times the passes of a program with units recomputing, if it holds too much without. `work` may
  /// be null.
  void time(const FoundSchedule& found, const Cost& cost, Work* work);

  /// Improves the best finds and `starts`, with an even share of the budget for each; does nothing
  /// where no order held too much. Stops at `bound`, in the user's units.
  void search(const std::vector<FoundSchedule>& starts, double bound);

  [[nodiscard]] const Finds& finds() const { return finds_; }

 private:
  void search_from(FoundSchedule start, LocalSearchOptions local);
  void keep(FoundSchedule found, const Job& job, const JobOrder& order, const Cost& cost);

  const SearchOptions& options_;
  Work& work_;
  std::int64_t& evaluations_;
  Finds finds_{options_};
};

}  // namespace millrace::plan
