// The shapes that a search has looked at, and what no schedule of each can beat.
#pragma once

#include <functional>
#include <vector>

#include "millrace/scheduler/plan/search.hpp"
#include "plan/search/recompute_choice.hpp"

namespace millrace::plan {

struct BoundedShape {
  Shape shape;
  double bound = 0;  ///< in the user's units
};

/// Stages that recompute, and what no schedule in which they do can beat.
struct BoundedChoice {
  RecomputeChoice choice;
  double bound = 0;
};

/// What the exact solver decides of a shape: every choice of recompute, those that can be best
/// first; the one without any where the search chooses none or there are too many.
[[nodiscard]] std::vector<BoundedChoice> choices_for(const SearchOptions& options,
                                                     const BoundedShape& shape,
                                                     const Cost& cost);

/// Whether every program that the search may find has one that is as good among those that the
/// exact solver looks at, which split every backward or none and run no pairs as one.
[[nodiscard]] bool exact_covers_all(const SearchOptions& options, const Cost& cost);

/// Thread-safety: externally synchronised.
class Shapes {
 public:
  /// `options` must outlive this.
  explicit Shapes(const SearchOptions& options) : options_(options) {}

  /// Takes the shape in, unless it is known, with the work of its busiest rank as its bound.
  void note(const Shape& shape);

  /// Raises every bound to lower_bound's, which holds whatever is recomputed where the search may
  /// choose that. Calls `before_each`. Throws Stopped when `stop` says so.
  void raise_bounds(const std::function<void()>& before_each, const Stop& stop);

  /// The smallest bound of all shapes; 0 without any.
  [[nodiscard]] double bound() const;

  /// Those that the exact solver is meant for.
  [[nodiscard]] std::vector<BoundedShape*> small();

 private:
  const SearchOptions& options_;
  std::vector<BoundedShape> shapes_;
};

}  // namespace millrace::plan
