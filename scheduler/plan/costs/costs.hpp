// The part of cost_of for given stages.
#pragma once

#include "millrace/scheduler/plan/costs.hpp"

namespace millrace::plan {

/// Sets the bytes of messages from a list of 1 value, or of one per boundary between `stages`
/// stages. Stages of the shape that are parts of one exchange what that passes on.
void set_message_bytes(Cost& cost, const Shape& shape, const std::vector<double>& list, int stages);

/// Costs of given stages for a shape; see cost_of.
[[nodiscard]] Cost cost_of_stages(const Shape& shape, const Costs& costs);

}  // namespace millrace::plan
