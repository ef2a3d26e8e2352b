// Objective: what a search makes small.
#pragma once

#include <cstdint>

namespace millrace {

/// Makespan: from the first op of any rank to the last op of any rank, what one step costs with a
/// barrier. Span: what a step costs when steps overlap, the smallest T at which the order runs,
/// with any starts, so that no rank needs longer than T from its first op to its last
/// (Report::span).
enum class Objective : std::uint8_t { Makespan, Span };

}  // namespace millrace
