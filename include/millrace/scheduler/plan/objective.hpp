// Objective: what a search makes small.
#pragma once

#include <cstdint>

namespace millrace {

/// Makespan: from the first op of any rank to the last op of any rank, what one step costs with a
/// barrier. Span: the largest, over ranks, of last end - first start in the as-early-as-possible
/// timeline, what a step costs when steps overlap.
enum class Objective : std::uint8_t { Makespan, Span };

}  // namespace millrace
