// The zero-bubble heuristic under a memory limit.
#pragma once

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// ZB auto: one pass over the micro-batches with three on/off rules, the best of the eight
/// combinations by span. The limit is in the units of memory_forward (default: p of them).
/// Cost: O(p m) time and memory per combination.
[[nodiscard]] Program zb_auto(const Request& options);

}  // namespace millrace::generators
