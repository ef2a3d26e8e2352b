// The V schedules that were published as lists, and the bidirectional one that is two of them.
#pragma once

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

/// ZBV as written out by its authors and by PyTorch; any m, best from 2p-1.
[[nodiscard]] Program zb_v(const Request& options);

/// DualPipeV, overlapped pairs marked; m >= 2p.
[[nodiscard]] Program dualpipe_v(const Request& options);

/// DualPipe: DualPipeV of half the ranks and micro-batches played twice, mirrored; p even, m even
/// and >= 2p.
[[nodiscard]] Program dualpipe(const Request& options);

}  // namespace millrace::generators
