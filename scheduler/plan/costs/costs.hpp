// The part of cost_of for given stages.
#pragma once

#include "millrace/scheduler/plan/costs.hpp"

namespace millrace::plan {

/// Costs of given stages for a shape; see cost_of.
[[nodiscard]] Cost cost_of_stages(const Shape& shape, const Costs& costs);

}  // namespace millrace::plan
