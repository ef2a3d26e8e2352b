// The wave schedule: zigzag placement, order found by deterministic list scheduling.
#pragma once

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// Hanayo's wave pipeline with `waves` waves, v = 2 waves chunks. Cost: O(m p v (v + log)) time.
[[nodiscard]] Program wave(const Request& options);

}  // namespace millrace::generators
