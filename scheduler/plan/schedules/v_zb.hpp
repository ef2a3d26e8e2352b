// V-ZB: the search over V building blocks under a memory cap, and 1F1B-V, the block whose backward
// is not split.
#pragma once

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// The best building block whose peak is within the limit (default: p micro-batches of a full
/// stage), by span with the given costs. Cost: O(p m) for each of a few hundred blocks; of the
/// first few where the shortest span is known beforehand (equal passes, free links, m >= 2p).
[[nodiscard]] Program v_zb(const ScheduleOptions& options);

/// 1F1B over the V placement: about two thirds of 1F1B's memory, the same on every rank.
[[nodiscard]] Program one_f_one_b_v(const ScheduleOptions& options);

}  // namespace millrace::generators
