// Slot programs: every op has a slot by a formula, and a rank's list is its ops by slot.
#pragma once

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// Chimera: two replicas, down and up, units of p micro-batches; p even, m a multiple of p.
[[nodiscard]] Program chimera(const Request& options);

}  // namespace millrace::generators
