// The part of a model's costs that belongs to links and ranks.
#pragma once

#include <cstddef>
#include <string>

#include "millrace/scheduler/plan/model_costs.hpp"

namespace millrace::plan {

/// Latency, bandwidth, contention and rank speeds where given, in the cost's ticks of
/// `ticks_per_unit`. Throws InvalidArgument for a list of another length than 1 or p x p.
void set_links(Cost& cost, const ModelCosts& costs, int ranks);

/// "1 value", "3 values".
[[nodiscard]] std::string value_count(std::size_t values);

}  // namespace millrace::plan
