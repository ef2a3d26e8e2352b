// The inspection of a step's gradients over all processes.
#pragma once

#include "millrace/training/records.hpp"
#include "millrace/training/state.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// Every weight once, whoever hosts copies of it, without the loss scale. A collective; the same in
/// every process.
[[nodiscard]] GradientInspection inspected(const TrainingState& state,
                                           ProcessGroup& group,
                                           double loss_scale);

}  // namespace millrace
