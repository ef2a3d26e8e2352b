// V-ZB: the search over V building blocks under a memory cap.
#pragma once

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// The best building block whose peak is within the limit (default: p micro-batches of a full
/// stage), by span with the given costs. Cost: O(p m) for each of a few hundred blocks; of the
/// first few where the shortest span is known beforehand (equal passes, free links, m >= 2p).
[[nodiscard]] Program v_zb(const Request& options);

}  // namespace millrace::generators
