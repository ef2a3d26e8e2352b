// V-Half and V-Min: a building block of one micro-batch, repeated, then pulled together.
#pragma once

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// About half of 1F1B's activation memory: peak (p+2)/2, rounded down.
[[nodiscard]] Program v_half(const ScheduleOptions& options);

/// About a third of 1F1B's activation memory: peak (p+4)/3, rounded down.
[[nodiscard]] Program v_min(const ScheduleOptions& options);

}  // namespace millrace::generators
