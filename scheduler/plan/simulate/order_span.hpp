// OrderSpan: the span of a program's order with a cost; see Report::span.
#pragma once

#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/simulate/period.hpp"

namespace millrace::plan {

/// The period of the order, in the cost's ticks. `timeline` is where it starts from: of a simulated
/// one whose longest rank is held up from its own first op to its last, nothing has to be run.
/// Infinite when the program cannot run to its end. Cost: O(actions) per run of the clock, mostly
/// none to three, at most ranks for every ratio met.
[[nodiscard]] CycleRatio order_span(const Graph& graph, const Cost& cost, const Timeline& timeline);

}  // namespace millrace::plan
