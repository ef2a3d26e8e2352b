// V-Half, V-Min and 1F1B-V (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): one
// building block each, repeated, then pulled together.
#pragma once

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// About half of 1F1B's activation memory: peak (p+2)/2, rounded down.
[[nodiscard]] Program v_half(const ScheduleOptions& options);

/// About a third of 1F1B's activation memory: peak (p+4)/3, rounded down.
[[nodiscard]] Program v_min(const ScheduleOptions& options);

/// 1F1B over the V placement, its backwards whole: about two thirds of 1F1B's memory, the same on
/// every rank.
[[nodiscard]] Program one_f_one_b_v(const ScheduleOptions& options);

}  // namespace millrace::generators
