// The zero-bubble heuristic for the V placement.
#pragma once

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// ZBV auto: four combinations of two filling rules, each run again with the bubbles it ended with
/// approved in advance; the best by its largest rank bubble. The limit is in the units of
/// memory_forward (default: p of them). Cost: O(p m) time and memory per combination.
[[nodiscard]] Program zb_v_auto(const Request& options);

}  // namespace millrace::generators
